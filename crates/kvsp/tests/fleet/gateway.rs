//! The gateway with good and bad input; after every bad request the next good one is answered.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use kvsp_openai::sse;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, JSON, MODEL, Process, complete, get, post, send};

const COMPLETIONS: &str = "v1/completions";
const CHAT: &str = "v1/chat/completions";

fn completion(changes: &Value) -> Value {
    let body = json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    changed(body, changes)
}

fn chat(changes: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "What is a lease?"}]);
    changed(json!({"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}), changes)
}

fn changed(mut body: Value, changes: &Value) -> Value {
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

/// Status, type and code of an error in the form of the OpenAI API.
fn error(answer: &Answer) -> (u16, String, Value) {
    assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
    let error = &answer.json()["error"];
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer:?}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{answer:?}");
    (answer.status, error["type"].as_str().unwrap().to_owned(), error["code"].clone())
}

/// The events of a streamed answer.
async fn events(gateway: &BaseUri, path: &str, body: &Value) -> Vec<Value> {
    let answer = post(gateway, path, body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream", "{answer:?}");
    let mut payloads = sse::EventReader::default().push(&answer.body).unwrap();
    assert_eq!(payloads.pop().as_deref(), Some(sse::DONE), "{answer:?}");
    payloads.iter().map(|payload| serde_json::from_str(payload).unwrap()).collect()
}

/// The status of a request with these header lines, which no well-behaved client sends.
fn raw(gateway: &BaseUri, headers: &str, body: &str) -> u16 {
    let authority = gateway.as_str().trim_start_matches("http://").split('/').next().unwrap();
    let mut stream = TcpStream::connect(authority).unwrap();
    let head = format!("POST {}{COMPLETIONS} HTTP/1.1\r\n{headers}\r\n", gateway.path());
    let fields = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    write!(stream, "{head}{fields}connection: close\r\n\r\n{body}").unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn bad_requests_are_refused_and_good_ones_answered() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("kvsp.toml");
    std::fs::write(&config, "[gateway.limits]\nmax_json_octets = 40000\n").unwrap();
    let all = ["all", "--model", "tiny", "--config", config.to_str().unwrap()];
    let all = Process::serve(dir.path(), &all);
    let gateway = all.uri("gateway");
    let good = complete(&gateway, "Once upon a time").await.0;

    let invalid = (400, "invalid_request_error", json!("invalid_request_error"));
    let missing = (404, "invalid_request_error", json!("model_not_found"));
    let too_long = (400, "invalid_request_error", json!("context_length_exceeded"));
    let cases = [
        (COMPLETIONS, completion(&json!({"model": "gpt-4o"})), &missing),
        (CHAT, chat(&json!({"model": ""})), &missing),
        (COMPLETIONS, completion(&json!({"temperature": 2.5})), &invalid),
        (COMPLETIONS, completion(&json!({"temperature": "hot"})), &invalid),
        (COMPLETIONS, completion(&json!({"top_p": -0.1})), &invalid),
        (COMPLETIONS, completion(&json!({"max_tokens": 0})), &invalid),
        (COMPLETIONS, completion(&json!({"max_tokens": 1.5})), &invalid),
        (COMPLETIONS, completion(&json!({"n": 2})), &invalid),
        (COMPLETIONS, completion(&json!({"stop": ["a", "b", "c", "d", "e"]})), &invalid),
        (COMPLETIONS, completion(&json!({"stop": ""})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": ""})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": []})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": ["a", "b"]})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": [-1]})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": [9999]})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": {"text": "a"}})), &invalid),
        (COMPLETIONS, completion(&json!({"prompt": "x".repeat(5000)})), &too_long),
        (COMPLETIONS, completion(&json!({"prompt": vec![65; 4096]})), &too_long),
        (COMPLETIONS, completion(&json!({"stream_options": {"include_usage": true}})), &invalid),
        (CHAT, chat(&json!({"messages": []})), &invalid),
        (CHAT, chat(&json!({"messages": "hello"})), &invalid),
        (CHAT, chat(&json!({"messages": [{"content": "no role"}]})), &invalid),
        (CHAT, chat(&json!({"max_completion_tokens": -1})), &invalid),
        (CHAT, chat(&json!({"messages": [{"role": "user", "content": "x".repeat(5000)}]})), &too_long),
    ];
    for (path, body, expected) in &cases {
        let answer = post(&gateway, path, body).await;
        let (status, kind, code) = error(&answer);
        assert_eq!((status, kind.as_str(), &code), (expected.0, expected.1, &expected.2), "{body}");
        assert!(answer.headers.contains_key("x-request-id"), "{answer:?}");
    }
    assert_eq!(complete(&gateway, "Once upon a time").await.0, good);

    let body = completion(&json!({})).to_string();
    let malformed = [
        String::new(),
        "{".into(),
        "[]".into(),
        "null".into(),
        format!("{{\"model\": \"{MODEL}\", {}", &body[1..]),
        body.replace("Once", "\\ud800"),
        body.replace('8', "9007199254740993"),
        "[".repeat(1000),
    ];
    for text in malformed {
        let answer = send(&gateway, "POST", COMPLETIONS, &[JSON], text.clone()).await;
        assert_eq!(error(&answer).0, 400, "{text}");
    }
    let answer = send(&gateway, "POST", COMPLETIONS, &[JSON], b"{\"model\": \"\xff\"}".to_vec()).await;
    assert_eq!(error(&answer).0, 400);
    for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let answer = send(&gateway, "POST", COMPLETIONS, &[("content-type", media)], body.clone()).await;
        assert_eq!(error(&answer).0, 415, "{media}");
    }
    assert_eq!(send(&gateway, "POST", COMPLETIONS, &[], body.clone()).await.status, 415);
    let coded = [JSON, ("content-encoding", "gzip")];
    assert_eq!(send(&gateway, "POST", COMPLETIONS, &coded, body.clone()).await.status, 415);
    let answer = post(&gateway, COMPLETIONS, &completion(&json!({"prompt": "x".repeat(50_000)}))).await;
    assert_eq!(error(&answer).0, 413);
    assert_eq!(complete(&gateway, "Once upon a time").await.0, good);

    assert_eq!(error(&get(&gateway, "v1/embeddings").await).0, 404);
    assert_eq!(error(&post(&gateway, "v1/completions/more", &json!({})).await).0, 404);
    assert_eq!(get(&gateway, "v2").await.status, 404);
    assert_eq!(error(&get(&gateway, "v1/models/gpt-4o").await), (404, missing.1.into(), missing.2.clone()));
    for (method, path, allow) in
        [("GET", COMPLETIONS, "POST"), ("DELETE", CHAT, "POST"), ("POST", "v1/models", "GET")]
    {
        let answer = send(&gateway, method, path, &[JSON], "{}").await;
        assert_eq!(error(&answer).0, 405, "{method} {path}");
        assert!(answer.headers["allow"].to_str().unwrap().contains(allow));
    }
    for header in ["Origin: http://evil.example\r\nHost: localhost", "Host: evil.example"] {
        assert_eq!(raw(&gateway, header, &body), 403, "{header:?}");
    }
    assert_eq!(raw(&gateway, "Host: localhost", &body), 200);
    assert_eq!(complete(&gateway, "Once upon a time").await.0, good);
}

#[tokio::test]
async fn answers_have_the_form_of_the_openai_api() {
    let dir = TempDir::new().unwrap();
    let all = Process::serve(dir.path(), &["all", "--model", "tiny"]);
    let gateway = all.uri("gateway");

    let models = get(&gateway, "v1/models").await.ok();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(get(&gateway, &format!("v1/models/{MODEL}")).await.ok()["object"], "model");
    // Clients may take the root for the API's base, too.
    let authority = gateway.as_str().trim_end_matches("kvsp/");
    assert_eq!(get(&authority.parse().unwrap(), "v1/models").await.ok(), models);

    // Whole and streamed, completion and chat: the same text and the same usage.
    let request = completion(&json!({"max_tokens": 40}));
    let whole = post(&gateway, COMPLETIONS, &request).await.ok();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("text_completion"), &json!(MODEL)));
    let (choice, usage) = (&whole["choices"][0], &whole["usage"]);
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(16), &json!(40)));
    assert_eq!(usage["total_tokens"], 56);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = events(&gateway, COMPLETIONS, &changed(request.clone(), &options)).await;
    let text = |events: &[Value], pointer: &str| -> String {
        events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
    };
    assert_eq!(text(&streamed, "/choices/0/text"), choice["text"].as_str().unwrap());
    let last = streamed.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(56)));
    let reasons: Vec<&Value> = streamed
        .iter()
        .filter_map(|e| e.pointer("/choices/0/finish_reason"))
        .filter(|r| !r.is_null())
        .collect();
    assert_eq!(reasons, [&json!("length")]);
    let plain = events(&gateway, COMPLETIONS, &changed(request.clone(), &json!({"stream": true}))).await;
    assert!(plain.iter().all(|event| event["choices"][0].is_object()), "no usage was asked for");

    let request = chat(&json!({"max_tokens": 30}));
    let whole = post(&gateway, CHAT, &request).await.ok();
    assert_eq!(whole["object"], "chat.completion");
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let streamed = events(&gateway, CHAT, &changed(request.clone(), &options)).await;
    assert_eq!(streamed[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(text(&streamed, "/choices/0/delta/content"), message["content"].as_str().unwrap());
    assert!(streamed.iter().all(|event| event["object"] == "chat.completion.chunk"));
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "What is a lease?"}]}]);
    let answer = post(&gateway, CHAT, &changed(request, &json!({"messages": parts}))).await.ok();
    assert_eq!(answer["choices"][0]["message"], *message);

    // Sampled: the same seed gives the same text; the limit and the stop string are kept.
    let sampled = completion(&json!({"temperature": 1.0, "seed": 5, "max_tokens": 30}));
    let one = post(&gateway, COMPLETIONS, &sampled).await.ok()["choices"][0]["text"].clone();
    assert_eq!(post(&gateway, COMPLETIONS, &sampled).await.ok()["choices"][0]["text"], one);
    let one = one.as_str().unwrap();
    let stop: String = one.chars().skip(6).take(2).collect();
    let before = &one[..one.find(&stop).unwrap()];
    for stream in [false, true] {
        let body = changed(sampled.clone(), &json!({"stop": stop, "stream": stream}));
        let cut = if stream {
            text(&events(&gateway, COMPLETIONS, &body).await, "/choices/0/text")
        } else {
            let answer = post(&gateway, COMPLETIONS, &body).await.ok();
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            answer["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(cut, before);
    }
    let few = post(&gateway, COMPLETIONS, &changed(sampled, &json!({"max_tokens": 3}))).await.ok();
    assert_eq!(few["usage"]["completion_tokens"], 3);
}

/// The client's request identifier comes back, and ties the directive to the request.
#[tokio::test]
async fn a_request_keeps_its_name() {
    let dir = TempDir::new().unwrap();
    let all = Process::serve(dir.path(), &["all", "--model", "tiny"]);
    let gateway = all.uri("gateway");
    let body = completion(&json!({})).to_string();
    for (path, body) in [(COMPLETIONS, body.as_str()), (COMPLETIONS, "{}"), ("v1/nothing", "{}")] {
        let named = [JSON, ("x-request-id", "trace-42")];
        let answer = send(&gateway, "POST", path, &named, body.to_owned()).await;
        assert_eq!(answer.headers["x-request-id"], "trace-42", "{answer:?}");
        let answer = send(&gateway, "POST", path, &[JSON], body.to_owned()).await;
        assert!(answer.headers["x-request-id"].to_str().unwrap().parse::<uuid::Uuid>().is_ok());
    }
}

/// A prompt that fits the model's context but not the instance's pool is told apart from other bad requests.
#[tokio::test]
async fn a_prompt_beyond_the_pool_is_too_long() {
    let dir = TempDir::new().unwrap();
    let all = Process::serve(dir.path(), &["all", "--model", "tiny", "--pool-octets", "512KiB"]);
    let gateway = all.uri("gateway");
    let answer = post(&gateway, COMPLETIONS, &completion(&json!({"prompt": "x".repeat(3000)}))).await;
    let expected = (400, "invalid_request_error".to_owned(), json!("context_length_exceeded"));
    assert_eq!(error(&answer), expected);
    complete(&gateway, "Once upon a time").await;
}

/// A controller and instance in one: it answers a placement with itself and a completion with nothing, and
/// tells what it was sent.
fn stub() -> (BaseUri, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base: BaseUri = format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let own = base.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            let mut reader = BufReader::new(&mut stream);
            while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap() > 0 {}
            let length = request.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            request.push_str(std::str::from_utf8(&body).unwrap());
            let placement =
                json!({"instance": own, "request_ref": "as-placed", "candidates": []}).to_string();
            let (media, body) = if request.starts_with("POST /kvsp/placements ") {
                ("application/kvsp+json", placement.as_str())
            } else {
                ("text/event-stream", "data: [DONE]\n\n")
            };
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\ncontent-length: {}\r\n", body.len());
            write!(stream, "{head}connection: close\r\n\r\n{body}").unwrap();
            if tell.send(request).is_err() {
                break;
            }
        }
    });
    (base, told)
}

/// The client's name for a request is the placement's `request_ref`; what the placement answers goes to the
/// instance as `Kvsp-Request-Ref`, with the scope, and the prompt as tokens.
#[tokio::test]
async fn the_name_of_a_request_ties_it_to_its_directive() {
    let dir = TempDir::new().unwrap();
    let (controller, told) = stub();
    let key = dir.path().join("scope.key");
    std::fs::write(&key, [7; 32]).unwrap();
    let gateway = ["gateway", "--model", "tiny", "--controller", controller.as_str(), "--scope-key"];
    let gateway = Process::serve(dir.path(), &[&gateway[..], &[key.to_str().unwrap()]].concat());
    let body = completion(&json!({"prompt": "x".repeat(33), "stream": true})).to_string();
    let named = [JSON, ("x-request-id", "trace-42")];
    let answer = send(&gateway.base(), "POST", COMPLETIONS, &named, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let placement = told.recv().unwrap();
    let asked: Value = serde_json::from_str(placement.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&asked["request_ref"], &asked["tokens"]), (&json!("trace-42"), &json!(33)));
    assert_eq!(asked["block_keys"].as_array().unwrap().len(), 2);
    let request = told.recv().unwrap();
    assert!(request.starts_with("POST /kvsp/v1/completions "), "{request}");
    assert!(request.contains("kvsp-request-ref: as-placed\r\n"), "{request}");
    assert!(request.contains(&format!("kvsp-scope-id: {}\r\n", asked["scope_id"].as_str().unwrap())));
    let sent: Value = serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(sent["prompt"], json!(vec![u32::from(b'x'); 33]));
}
