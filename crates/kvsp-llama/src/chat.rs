//! Chat templates: Jinja from the model's files, which are not trusted.

use kvsp_engine::{ChatMessage, TokenizerError};
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

/// Steps a template may take: a template's work grows with the messages, never without end.
const FUEL: u64 = 5_000_000;
const NAME: &str = "chat";

/// A compiled chat template with the model's own tokens.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compile a template as Hugging Face models write them.
    pub(crate) fn new(source: &str, bos: String, eos: String) -> Result<Self, TokenizerError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_template_owned(NAME, source.to_owned()).map_err(|e| template_error(&e))?;
        Ok(Self { environment, bos, eos })
    }

    /// The prompt of these messages, with the assistant's turn opened.
    pub(crate) fn render(&self, messages: &[ChatMessage]) -> Result<String, TokenizerError> {
        let template = self.environment.get_template(NAME).map_err(|e| template_error(&e))?;
        let context = minijinja::context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos,
            eos_token => self.eos,
        };
        template.render(context).map_err(|e| template_error(&e))
    }
}

fn template_error(error: &minijinja::Error) -> TokenizerError {
    TokenizerError::Template(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TokenizerError> {
        ChatTemplate::new(source, "<s>".into(), "</s>".into())?.render(messages)
    }

    #[test]
    fn python_methods_and_special_tokens_work() {
        let source = "{{ bos_token }}{% for m in messages %}\n    {%- if m['content'].startswith('h') %}\n{{ m.role }}: {{ m['content'].strip() | upper }}{{ eos_token }}\n    {%- endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}";
        let text = render(source, &[message("user", "hi "), message("user", "no")]).unwrap();
        assert_eq!(text, "<s>user: HI</s>>");
    }

    #[test]
    fn a_template_may_refuse() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}";
        let error = render(source, &[message("system", "x")]).unwrap_err();
        assert!(matches!(error, TokenizerError::Template(why) if why.contains("user first")));
    }

    #[test]
    fn the_clock_is_absent_and_can_be_asked_for() {
        let source = "{% if strftime_now is defined %}now{% else %}{{ 26 }}{% endif %}";
        assert_eq!(render(source, &[]).unwrap(), "26");
    }

    #[test]
    fn an_endless_template_ends() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(render(source, &[]).is_err());
        assert!(render("{% for", &[]).is_err());
    }
}
