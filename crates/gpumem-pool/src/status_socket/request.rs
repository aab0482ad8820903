//! [`Ask`]: what a line asks for.

use gpumem_sys::text::Shown;
use serde_json::Value;
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Status,
    Prometheus,
    Record(PathBuf),
    Stop,
    Flight,
    Limit { pool: String, is_hard: bool, limit: String },
    Help,
}

impl Ask {
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim();
        if line.starts_with('{') {
            let value: Value = serde_json::from_str(line).map_err(|error| {
                format!(
                    "the request is not valid JSON ({}); send one object a line",
                    Shown::sentence(&error.to_string())
                )
            })?;
            return Self::of_json(&value);
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Self::of(word, || match word {
            "record" => Some(vec![rest.trim().into()]),
            // A name may have spaces.
            _ => {
                let mut words: Vec<&str> = rest.split_whitespace().collect();
                let (limit, kind) = (words.pop()?, words.pop()?);
                Some(vec![words.join(" "), kind.into(), limit.into()])
            }
        })
    }

    fn of_json(value: &Value) -> Result<Self, String> {
        let text = |key: &str| match value.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let word = text("do").ok_or("the request has no \"do\"; send {\"do\":\"status\"}")?;
        Self::of(&word, || match word.as_str() {
            "record" => Some(vec![text("path")?]),
            _ => Some(vec![text("pool")?, text("kind")?, text("limit")?]),
        })
    }

    fn of(word: &str, arguments: impl FnOnce() -> Option<Vec<String>>) -> Result<Self, String> {
        Ok(match word {
            "status" => Self::Status,
            "prometheus" => Self::Prometheus,
            "stop" => Self::Stop,
            "flight" => Self::Flight,
            "help" => Self::Help,
            "record" => match arguments().as_deref() {
                Some([path]) if path.starts_with('/') => Self::Record(path.into()),
                _ => return Err("`record` needs the absolute path of a file: record /tmp/run.trace".into()),
            },
            "limit" => match arguments().as_deref() {
                Some([pool, kind, limit]) if !pool.is_empty() && ["soft", "hard"].contains(&&**kind) => {
                    Self::Limit { pool: pool.clone(), is_hard: kind == "hard", limit: limit.clone() }
                }
                _ => {
                    return Err("`limit` needs a pool, `soft` or `hard`, and bytes: limit 3 soft 8GiB".into());
                }
            },
            _ => {
                let word = Shown::name(word);
                return Err(format!("there is no request `{word}`; send one of: {REQUESTS}"));
            }
        })
    }
}

pub(super) const REQUESTS: &str = "status, prometheus, record PATH, stop, flight, limit POOL soft|hard BYTES, help; or GET /metrics of HTTP";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_objects_are_parsed() {
        let limit = || Ask::Limit { pool: "kv cache".into(), is_hard: false, limit: "8GiB".into() };
        assert_eq!(Ask::parse(" limit kv cache soft 8GiB\r"), Ok(limit()));
        assert_eq!(
            Ask::parse(r#"{"do":"limit","pool":"kv cache","kind":"soft","limit":"8GiB"}"#),
            Ok(limit())
        );
        let three = Ask::Limit { pool: "3".into(), is_hard: true, limit: "1024".into() };
        assert_eq!(Ask::parse(r#"{"do":"limit","pool":3,"kind":"hard","limit":1024}"#), Ok(three));
        assert_eq!(Ask::parse("record /tmp/a b.trace"), Ok(Ask::Record("/tmp/a b.trace".into())));
        assert_eq!(Ask::parse("status"), Ok(Ask::Status));
        for (line, said) in [
            ("record run.trace", "needs the absolute path"),
            ("record", "needs the absolute path"),
            ("limit 3 sofd 1", "needs a pool, `soft` or `hard`"),
            ("limit soft 1", "needs a pool"),
            ("statu\u{1b}[2J", "there is no request `statu"),
            ("{", "is not valid JSON"),
            ("{}", "has no \"do\""),
            ("", "there is no request"),
        ] {
            let error = Ask::parse(line).unwrap_err();
            assert!(error.contains(said) && !error.contains('\u{1b}'), "{line:?}: {error}");
        }
    }
}
