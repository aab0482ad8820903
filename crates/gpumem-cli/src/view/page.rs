//! The page: one file with its style, its script and its data.

use super::data::{self, Map};
use gpumem_trace::Trace;
use std::io::{self, Write};
use std::path::Path;

pub(super) fn write(trace: &Trace, file: &Path, output: &mut dyn Write) -> io::Result<()> {
    let map = Map::of(trace);
    let columns = data::columns(trace, &map);
    let meta = data::meta(trace, file, &map, &columns);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        output.write_all(before.as_bytes())?;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "title" => output.write_all(escaped(&format!("{}: GPU memory", trace.name())).as_bytes())?,
            "css" => output.write_all(STYLE.as_bytes())?,
            "js" => output.write_all(SCRIPT.as_bytes())?,
            // No text of the file can end the element that it is in.
            "meta" => output.write_all(meta.to_string().replace('<', "\\u003c").as_bytes())?,
            "data" => columns.write(output)?,
            _ => {}
        }
        rest = after;
    }
    output.write_all(rest.as_bytes())
}

/// Text for HTML and XML. Control characters, which XML refuses, become a replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other if other.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// One script: the files see each other's names.
const SCRIPT: &str = concat!(
    include_str!("page/record.js"),
    include_str!("page/chart.js"),
    include_str!("page/moment.js"),
    include_str!("page/controls.js"),
);
