//! `spawnlet get`.

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, TABLE, collection, item, with_query};
use super::failure::Failure;
use super::named::expect_name;
use super::observe::error_of;
use super::output::{Output, TablePrinter, text};
use crate::rest::resource::Resource;

/// Objects that are asked for at a time, so that no answer grows with the store.
const PAGE: &str = "500";

/// Show objects.
#[derive(Debug, Args)]
pub(super) struct Get {
    /// A kind (sessions, se, turns, agents, workspaces, roles, permissionrequests, events, namespaces,
    /// reconcilereports, manifests), several with commas between them, or KIND/NAME.
    kind: String,
    /// The object's name or uid; all of the kind if absent.
    name: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
    /// Only objects with such labels: a=b, a!=b, a in (b,c), a, !a; comma-separated.
    #[arg(short = 'l', long)]
    selector: Option<String>,
    /// Only objects with such fields: metadata.name, status.phase, ...
    #[arg(long)]
    field_selector: Option<String>,
    /// Go on with what changes.
    #[arg(short, long)]
    watch: bool,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// `KIND NAME` or `KIND/NAME`.
pub(super) fn parse_subject(
    kind: &str,
    name: Option<&str>,
) -> Result<(Resource, Option<String>), Failure> {
    let (kind, name) = match (kind.split_once('/'), name) {
        (Some((kind, name)), None) => (kind, Some(name)),
        (Some(_), Some(_)) => {
            return Err(Failure::Usage(format!("{kind}: give KIND/NAME or KIND NAME, not both")));
        }
        (None, name) => (kind, name),
    };
    let resource = Resource::parse(kind).ok_or_else(|| {
        let kinds: Vec<&str> = Resource::ALL.into_iter().map(Resource::plural).collect();
        Failure::Usage(format!("there is no kind {kind:?}; there are {}", kinds.join(", ")))
    })?;
    name.map_or(Ok(()), |name| expect_name(resource, name))?;
    Ok((resource, name.map(str::to_owned)))
}

impl Get {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        if self.kind.contains(',') {
            return self.several(context).await;
        }
        let (resource, name) = parse_subject(&self.kind, self.name.as_deref())?;
        if self.watch && !resource.verbs().contains(&"watch") {
            return Err(Failure::Usage(format!("{} cannot be watched", resource.plural())));
        }
        let client = context.client()?;
        let namespace = (!self.all_namespaces).then_some(context.namespace.as_str());
        if let Some(name) = &name {
            if !resource.verbs().contains(&"get") {
                return Err(Failure::Usage(format!(
                    "{} are listed only; leave the name out",
                    resource.plural()
                )));
            }
            return self.one(&client, resource, name, context).await;
        }
        let with_namespace = self.all_namespaces && resource.is_namespaced();
        let mut printer = TablePrinter::new(self.output == Output::Wide, with_namespace);
        let selectors = self.selectors();
        let path = collection(resource, namespace);
        let version = if self.output.is_table() {
            self.tables(&client, &path, &selectors, resource, &mut printer, context).await?
        } else {
            let list = whole_list(&client, &path, &selectors).await?;
            if self.watch {
                for object in list["items"].as_array().map_or(&[][..], Vec::as_slice) {
                    self.output.write_one(object, resource, context.out)?;
                }
            } else {
                self.output.write(&list, resource, context.out)?;
            }
            text(&list, "/metadata/resourceVersion").to_owned()
        };
        if self.watch {
            let mut query = selectors.to_vec();
            query.extend([("watch", "1"), ("resourceVersion", version.as_str())]);
            let path = with_query(&path, &query);
            return self.follow(&client, &path, resource, printer, context).await;
        }
        Ok(())
    }

    fn selectors(&self) -> [(&'static str, &str); 2] {
        [
            ("labelSelector", self.selector.as_deref().unwrap_or_default()),
            ("fieldSelector", self.field_selector.as_deref().unwrap_or_default()),
        ]
    }

    /// All objects of several kinds: a table a kind, or one list.
    async fn several(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        if self.watch || self.name.is_some() || self.kind.contains('/') {
            return Err(Failure::Usage(
                "several kinds are listed only: leave names and --watch out".to_owned(),
            ));
        }
        let kinds = self
            .kind
            .split(',')
            .map(|kind| parse_subject(kind, None).map(|(resource, _)| resource))
            .collect::<Result<Vec<_>, _>>()?;
        let client = context.client()?;
        let namespace = (!self.all_namespaces).then(|| context.namespace.clone());
        let (mut has_printed, mut all) = (false, Vec::new());
        for resource in kinds {
            let path = collection(resource, namespace.as_deref());
            if self.output.is_table() {
                let with_namespace = self.all_namespaces && resource.is_namespaced();
                let mut printer = TablePrinter::new(self.output == Output::Wide, with_namespace)
                    .one_of_many(resource.singular(), has_printed);
                let selectors = self.selectors();
                self.tables(&client, &path, &selectors, resource, &mut printer, context).await?;
                has_printed |= printer.has_printed();
                continue;
            }
            let mut list = whole_list(&client, &path, &self.selectors()).await?;
            if self.output == Output::Name {
                self.output.write(&list, resource, context.out)?;
            } else if let Some(items) = list["items"].as_array_mut() {
                // Items of a list need not say what they are; among others they must.
                for item in items.iter_mut() {
                    item["apiVersion"] = json!(resource.api_version());
                    item["kind"] = json!(resource.kind());
                }
                all.append(items);
            }
        }
        if matches!(self.output, Output::Json | Output::Yaml) {
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": all});
            self.output.write(&list, Resource::Reports, context.out)?;
        }
        Ok(())
    }

    async fn one(
        &self,
        client: &Client,
        resource: Resource,
        name: &str,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let path = item(resource, &context.namespace, name);
        let mut printer = TablePrinter::new(self.output == Output::Wide, false);
        // The plain object tells the name (a uid may have been given) and the revision.
        let object = client.get(&path).await?;
        if self.output.is_table() {
            printer.print(&client.table(&path).await?, context.out)?;
        } else if self.watch {
            self.output.write_one(&object, resource, context.out)?;
        } else {
            self.output.write(&object, resource, context.out)?;
        }
        if !self.watch {
            return Ok(());
        }
        let selector = format!("metadata.name={}", text(&object, "/metadata/name"));
        let query = [
            ("watch", "1"),
            ("fieldSelector", selector.as_str()),
            ("resourceVersion", text(&object, "/metadata/resourceVersion")),
        ];
        let path = with_query(&collection(resource, Some(&context.namespace)), &query);
        self.follow(client, &path, resource, printer, context).await
    }

    /// Prints all pages of a table; gives the revision of the first.
    async fn tables(
        &self,
        client: &Client,
        path: &str,
        selectors: &[(&str, &str)],
        resource: Resource,
        printer: &mut TablePrinter,
        context: &mut Context<'_>,
    ) -> Result<String, Failure> {
        let (mut next, mut count) = (String::new(), 0);
        loop {
            let mut query = selectors.to_vec();
            query.extend([("limit", PAGE), ("continue", next.as_str())]);
            let table = client.table(&with_query(path, &query)).await?;
            count += printer.print(&table, context.out)?;
            text(&table, "/metadata/continue").clone_into(&mut next);
            if next.is_empty() {
                if count == 0 {
                    // Not on standard output: a program that reads it sees no rows.
                    eprint_line(&format!("no {} found", resource.plural()));
                }
                return Ok(text(&table, "/metadata/resourceVersion").to_owned());
            }
        }
    }

    async fn follow(
        &self,
        client: &Client,
        path: &str,
        resource: Resource,
        mut printer: TablePrinter,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let accept = if self.output.is_table() { TABLE } else { "application/json" };
        let mut events = client.stream(path, accept).await?;
        while let Some(event) = events.json_line().await? {
            match text(&event, "/type") {
                "ERROR" => return Err(error_of(&event)),
                "BOOKMARK" => {}
                _ if self.output.is_table() => {
                    printer.print(&event["object"], context.out)?;
                }
                _ => self.output.write_one(&event["object"], resource, context.out)?,
            }
        }
        Err(Failure::Unreachable("the daemon ended the watch: it is stopping".to_owned()))
    }
}

/// All pages of a list as one.
pub(super) async fn whole_list(
    client: &Client,
    path: &str,
    selectors: &[(&str, &str)],
) -> Result<Value, Failure> {
    let mut whole: Option<Value> = None;
    let mut next = String::new();
    loop {
        let mut query = selectors.to_vec();
        query.extend([("limit", PAGE), ("continue", next.as_str())]);
        let mut page = client.get(&with_query(path, &query)).await?;
        text(&page, "/metadata/continue").clone_into(&mut next);
        if let Some(metadata) = page["metadata"].as_object_mut() {
            metadata.remove("continue");
        }
        match &mut whole {
            None => whole = Some(page),
            Some(whole) => {
                if let (Some(all), Some(more)) =
                    (whole["items"].as_array_mut(), page["items"].as_array_mut())
                {
                    all.append(more);
                }
            }
        }
        if next.is_empty() {
            return Ok(whole.unwrap_or_default());
        }
    }
}

/// Says something to the person at the terminal.
pub(super) fn eprint_line(text: &str) {
    use std::io::Write;
    // Nothing can be done if it cannot be written.
    let _ = writeln!(std::io::stderr(), "{text}");
}
