"""What the official client does with a gateway: openai_client.py BASE_URL MODEL."""

import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=60)

assert [entry.id for entry in client.models.list()] == [model]
assert client.models.retrieve(model).owned_by

request = {"model": model, "prompt": "A block is", "max_tokens": 24, "temperature": 0}
whole = client.completions.create(**request)
assert whole.object == "text_completion" and whole.choices[0].text, whole
assert whole.choices[0].finish_reason in ("length", "stop"), whole
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole
chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text, chunks
assert chunks[-1].usage.total_tokens == whole.usage.total_tokens, chunks[-1]
again = client.completions.create(model=model, prompt="B" * 100, max_tokens=1)
again = client.completions.create(model=model, prompt="B" * 100, max_tokens=1)
assert again.usage.prompt_tokens_details.cached_tokens == 96, again.usage

messages = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": [{"type": "text", "text": "What is a lease?"}]},
]
request = {"model": model, "messages": messages, "max_completion_tokens": 24, "temperature": 0, "seed": 1}
whole = client.chat.completions.create(**request)
assert whole.object == "chat.completion", whole
assert whole.choices[0].message.role == "assistant", whole
chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
assert text == whole.choices[0].message.content, (text, whole)
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1]
assert not chunks[-1].choices and chunks[0].choices[0].delta.role == "assistant", chunks

with client.chat.completions.with_streaming_response.create(**request, stream=True) as response:
    assert response.headers["x-request-id"]


def raises(error, code, call, **arguments):
    try:
        call(**arguments)
    except error as raised:
        assert raised.code == code, (raised.code, raised)
        assert raised.request_id, raised
    else:
        raise AssertionError(f"no {error.__name__}: {arguments}")


raises(openai.NotFoundError, "model_not_found", client.chat.completions.create, model="no", messages=messages)
raises(openai.NotFoundError, "model_not_found", client.models.retrieve, model="no/such")
completion = client.completions.create
raises(openai.BadRequestError, "invalid_request_error", completion, model=model, prompt="a", temperature=3)
raises(openai.BadRequestError, "context_length_exceeded", completion, model=model, prompt="a" * 5000)
raises(openai.BadRequestError, "context_length_exceeded", completion, model=model, prompt="a" * 5000, stream=True)

# A stream that is given up leaves the gateway as it was.
with client.completions.create(model=model, prompt="A", max_tokens=2000, stream=True) as stream:
    next(iter(stream))
assert client.completions.create(model=model, prompt="A block is", max_tokens=24, temperature=0).choices[0].text
print("ok")
