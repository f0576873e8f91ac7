//! `spawnlet events`.

use clap::Args;
use serde_json::Value;

use super::Context;
use super::client::{TABLE, collection, with_query};
use super::failure::Failure;
use super::get::{eprint_line, parse_subject};
use super::observe::error_of;
use super::output::{Output, TablePrinter, text};
use crate::api::Kind;
use crate::rest::resource::Resource;

const EVENT: Resource = Resource::Records(Kind::Event);

/// Show events.
#[derive(Debug, Args)]
pub(super) struct Events {
    /// Only those about KIND/NAME.
    #[arg(long = "for", value_name = "KIND/NAME")]
    about: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Go on with new ones.
    #[arg(short, long)]
    watch: bool,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Events {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let selector = match &self.about {
            None => String::new(),
            Some(about) => selector_of(about)?,
        };
        let client = context.client()?;
        let namespace = (!self.all_namespaces).then_some(context.namespace.as_str());
        let path = collection(EVENT, namespace);
        // Whole objects, because the rows are sorted by a field of theirs.
        let query = [("fieldSelector", selector.as_str()), ("includeObject", "Object")];
        let mut printer = TablePrinter::new(self.output == Output::Wide, self.all_namespaces);
        let list = if self.output.is_table() {
            let mut table = client.table(&with_query(&path, &query)).await?;
            sort_by_time(&mut table);
            if printer.print(&table, context.out)? == 0 {
                eprint_line("no events found");
            }
            table
        } else {
            let mut list = client.get(&with_query(&path, &query)).await?;
            sort_by_time(&mut list);
            self.output.write(&list, EVENT, context.out)?;
            list
        };
        if !self.watch {
            return Ok(());
        }
        let query = [
            ("fieldSelector", selector.as_str()),
            ("watch", "1"),
            ("resourceVersion", text(&list, "/metadata/resourceVersion")),
        ];
        let accept = if self.output.is_table() { TABLE } else { "application/json" };
        let mut events = client.stream(&with_query(&path, &query), accept).await?;
        while let Some(event) = events.json_line().await? {
            match text(&event, "/type") {
                "ERROR" => return Err(error_of(&event)),
                // Old events go; that is no news.
                "DELETED" | "BOOKMARK" => {}
                _ if self.output.is_table() => {
                    printer.print(&event["object"], context.out)?;
                }
                _ => self.output.write_one(&event["object"], EVENT, context.out)?,
            }
        }
        Err(Failure::Unreachable("the daemon ended the watch: it is stopping".to_owned()))
    }
}

/// Sorts events, or a table's rows of such, by when they last happened. The API lists by name.
pub(super) fn sort_by_time(list: &mut Value) {
    for (part, pointer) in [("rows", "/object/lastTimestamp"), ("items", "/lastTimestamp")] {
        if let Some(events) = list.get_mut(part).and_then(Value::as_array_mut) {
            events.sort_by(|left, right| text(left, pointer).cmp(text(right, pointer)));
        }
    }
}

/// The field selector of the events about `KIND/NAME`.
pub(super) fn selector_of(about: &str) -> Result<String, Failure> {
    let (resource, name) = parse_subject(about, None)?;
    let Some(name) = name else {
        return Err(Failure::Usage("about which one? give KIND/NAME".to_owned()));
    };
    Ok(format!("involvedObject.kind={},involvedObject.name={name}", resource.kind()))
}
