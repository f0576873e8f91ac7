//! Output: tables as the daemon makes them, YAML, JSON, names.

use std::io::Write;

use clap::ValueEnum;
use serde_json::Value;

use super::failure::Failure;
use crate::rest::{printable, resource::Resource};

/// Between two columns.
const GAP: usize = 3;

/// The form of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Aligned columns.
    #[default]
    Table,
    /// The same with all columns.
    Wide,
    /// The objects as YAML.
    Yaml,
    /// The objects as JSON.
    Json,
    /// `kind/name` only.
    Name,
}

impl Output {
    /// Whether the daemon is asked for a table.
    pub(super) const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Writes an object, or a list as one document.
    pub(super) fn write(
        self,
        value: &Value,
        resource: Resource,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        match self {
            Self::Json => writeln!(out, "{value:#}")?,
            Self::Yaml => {
                let text = serde_yaml::to_string(value)
                    .map_err(|error| Failure::Failed(format!("no YAML: {error}")))?;
                write!(out, "{text}")?;
            }
            Self::Name | Self::Table | Self::Wide => match value.get("items") {
                Some(items) => {
                    for item in items.as_array().map_or(&[][..], Vec::as_slice) {
                        writeln!(out, "{}", name_of(item, resource))?;
                    }
                }
                None => writeln!(out, "{}", name_of(value, resource))?,
            },
        }
        Ok(())
    }

    /// Writes one of many objects, as a watch does.
    pub(super) fn write_one(
        self,
        value: &Value,
        resource: Resource,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if self == Self::Yaml {
            writeln!(out, "---")?;
        }
        self.write(value, resource, out)?;
        out.flush()?;
        Ok(())
    }
}

/// `session/name`.
pub(super) fn name_of(object: &Value, resource: Resource) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    format!("{}/{name}", resource.singular())
}

/// The text at a pointer, empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A text of elsewhere as part of a sentence, in one line: what would steer the terminal or not be seen
/// is left out.
pub(super) fn readable(text: &str) -> String {
    printable(text).replace('\n', " ")
}

/// A text of elsewhere as part of a line: what would steer the terminal, begin a line or not be seen
/// is escaped.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        let is_shown = !printable(character.encode_utf8(&mut [0; 4])).is_empty();
        if is_shown && !character.is_control() {
            line.push(character);
        } else {
            line.extend(character.escape_default());
        }
    }
    line
}

/// Prints tables with one header, so that a watch's rows stand below the list's.
#[derive(Debug, Default)]
pub(super) struct TablePrinter {
    is_wide: bool,
    with_namespace: bool,
    is_header_done: bool,
    /// Stands before each name, where a table is one of several.
    prefix: Option<&'static str>,
    is_after_another: bool,
    widths: Vec<usize>,
}

impl TablePrinter {
    pub(super) fn new(is_wide: bool, with_namespace: bool) -> Self {
        Self { is_wide, with_namespace, ..Self::default() }
    }

    /// One of several tables: names get their kind, and an empty line goes before it if another
    /// table was printed.
    pub(super) const fn one_of_many(mut self, kind: &'static str, is_after_another: bool) -> Self {
        self.prefix = Some(kind);
        self.is_after_another = is_after_another;
        self
    }

    /// Whether anything was printed.
    pub(super) const fn has_printed(&self) -> bool {
        self.is_header_done
    }

    /// Prints a `Table` and tells how many rows it had.
    pub(super) fn print(&mut self, table: &Value, out: &mut dyn Write) -> Result<usize, Failure> {
        let (header, mut rows) = self.cells(table);
        if let Some(prefix) = self.prefix
            && let Some(column) = header.iter().position(|name| name == "NAME")
        {
            for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
                *cell = format!("{prefix}/{cell}");
            }
        }
        if rows.is_empty() {
            return Ok(0);
        }
        self.widths.resize(header.len(), 0);
        let lines = std::iter::once(&header).chain(&rows);
        for line in lines {
            for (width, cell) in self.widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        if !std::mem::replace(&mut self.is_header_done, true) {
            if self.is_after_another {
                writeln!(out)?;
            }
            self.line(&header, out)?;
        }
        for row in &rows {
            self.line(row, out)?;
        }
        out.flush()?;
        Ok(rows.len())
    }

    fn cells(&self, table: &Value) -> (Vec<String>, Vec<Vec<String>>) {
        let list = |name: &str| table.get(name).and_then(Value::as_array).map_or(&[][..], |v| v);
        let shown: Vec<usize> = list("columnDefinitions")
            .iter()
            .enumerate()
            .filter(|(_, column)| {
                self.is_wide || column.get("priority").and_then(Value::as_u64) == Some(0)
            })
            .map(|(index, _)| index)
            .collect();
        let namespace = self.with_namespace.then(|| "NAMESPACE".to_owned());
        let header = namespace
            .into_iter()
            .chain(
                shown
                    .iter()
                    .map(|index| text(&list("columnDefinitions")[*index], "/name").to_uppercase()),
            )
            .collect();
        let rows = list("rows")
            .iter()
            .map(|row| {
                let namespace =
                    self.with_namespace.then(|| text(row, "/object/metadata/namespace").to_owned());
                let cells = row.get("cells").and_then(Value::as_array);
                namespace
                    .into_iter()
                    .chain(
                        shown
                            .iter()
                            .map(|index| cell_text(cells.and_then(|cells| cells.get(*index)))),
                    )
                    .collect()
            })
            .collect();
        (header, rows)
    }

    fn line(&self, cells: &[String], out: &mut dyn Write) -> Result<(), Failure> {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&self.widths) {
            line.push_str(cell);
            let used = cell.chars().count();
            line.push_str(&" ".repeat(width.saturating_sub(used) + GAP));
        }
        writeln!(out, "{}", line.trim_end())?;
        Ok(())
    }
}

fn cell_text(cell: Option<&Value>) -> String {
    match cell {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => one_line(text),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(rows: Value) -> Value {
        json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Cwd", "priority": 1},
                {"name": "Queued", "priority": 0},
            ],
            "rows": rows,
        })
    }

    fn print(printer: &mut TablePrinter, table: &Value) -> String {
        let mut out = Vec::new();
        printer.print(table, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_wide_ones_shown_on_demand() {
        let rows = json!([{"cells": ["a", "/x", 1]}, {"cells": ["longer-é", null, 12]}]);
        let mut plain = TablePrinter::default();
        assert_eq!(
            print(&mut plain, &table(rows.clone())),
            "NAME       QUEUED\na          1\nlonger-é   12\n"
        );
        // A later event has no second header.
        assert_eq!(print(&mut plain, &table(json!([{"cells": ["b", "", 0]}]))), "b          0\n");
        let mut wide = TablePrinter::new(true, false);
        assert!(print(&mut wide, &table(rows)).starts_with("NAME       CWD   QUEUED\n"));
        assert_eq!(print(&mut TablePrinter::default(), &table(json!([]))), "");
    }

    #[test]
    fn a_text_of_elsewhere_stays_in_its_line_and_steers_nothing() {
        let shown = one_line("/é\u{1b}[31m\n\t\u{202e}x");
        assert_eq!(shown, r"/é\u{1b}[31m\n\t\u{202e}x");
        let rows = json!([{"cells": ["a\nb", "", 0]}]);
        let text = print(&mut TablePrinter::default(), &table(rows));
        assert_eq!(text, "NAME   QUEUED\na\\nb   0\n");
    }

    #[test]
    fn all_namespaces_show_each_objects_own() {
        let rows = json!([{"cells": ["a", "", 0], "object": {"metadata": {"namespace": "n"}}}]);
        let text = print(&mut TablePrinter::new(false, true), &table(rows));
        assert_eq!(text, "NAMESPACE   NAME   QUEUED\nn           a      0\n");
    }

    #[test]
    fn every_form_has_one_shape() {
        let resource = Resource::parse("session").unwrap();
        let list = json!({"items": [{"metadata": {"name": "a"}}]});
        let write = |output: Output| {
            let mut out = Vec::new();
            output.write(&list, resource, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(write(Output::Name), "session/a\n");
        assert_eq!(serde_json::from_str::<Value>(&write(Output::Json)).unwrap(), list);
        assert!(write(Output::Yaml).starts_with("items:\n"));
        let empty = json!({"items": [], "kind": "SessionList"});
        let mut out = Vec::new();
        Output::Yaml.write(&empty, resource, &mut out).unwrap();
        assert!(out.ends_with(b"\n") && !out.ends_with(b"\n\n"), "{out:?}");
    }
}
