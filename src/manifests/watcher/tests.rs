mod held;

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::admission::{DeleteOptions, Limits, WriteOptions, Writer};
use crate::api::session::{DesiredState, EndOutcome, SessionEnd};
use crate::api::{
    Agent, AgentSpec, ConditionStatus, Event, Kind, MANAGED_BY, Name, Namespace, Session,
    SessionSpec,
};
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::ports::Manifest;
use crate::slots::SharedSlots;
use crate::store::keys;
use crate::store::memory::MemoryStore;
use crate::store::records::{Page, Records, Txn};

/// A service that is driven look by look, by a manual clock.
struct Bench {
    root: TempDir,
    store: SharedStore,
    admission: Arc<Admission>,
    clock: Arc<ManualClock>,
    service: Service,
    handle: Handle,
}

fn agent(name: &str) -> String {
    format!(
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec: {{argv: [a]}}\n---\n"
    )
}

fn session(name: &str, rest: &str) -> String {
    format!(
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata:\n  name: {name}\nspec:\n  agent: a\n  cwd: /tmp\n  {rest}\n---\n"
    )
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let memory = Arc::new(MemoryStore::new());
        let store: SharedStore = memory.clone();
        let clock = Arc::new(ManualClock::default());
        let admission = Arc::new(Admission::new(
            store.clone(),
            memory,
            clock.clone(),
            SharedSlots::default(),
            Limits::default(),
        ));
        let (service, handle) = start(&[root.path()], &admission, &store, &clock);
        Self { root, store, admission, clock, service, handle }
    }

    /// The daemon ends and starts again on the same store.
    fn restart(&mut self) {
        let root = self.root.path().to_owned();
        (self.service, self.handle) = start(&[&root], &self.admission, &self.store, &self.clock);
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.root.path().join(path)).unwrap();
    }

    /// Looks often enough for what is on disk to settle and for absences to count.
    async fn settle(&mut self) {
        for ms in [0, 200, 2000, 250, 250] {
            self.after(ms).await;
        }
    }

    async fn after(&mut self, ms: u64) -> Duration {
        self.clock.advance(Duration::from_millis(ms));
        let Due(due) = self.service.look().await;
        due.since(self.clock.now().mono)
    }

    fn records(&self) -> Records {
        Records::new(self.store.clone())
    }

    async fn session(&self, name: &str) -> Option<Session> {
        self.records().get::<SessionSpec>(&"default".into(), &name.into()).await.unwrap()
    }

    async fn agents(&self) -> Vec<String> {
        let agents = self.records().list::<AgentSpec>(None, &Page::ALL).await.unwrap().items;
        agents.into_iter().map(|agent: Agent| agent.metadata.name.to_string()).collect()
    }

    /// The controller proved that no process is left.
    async fn finish_deletion(&self, name: &str) {
        let session = self.session(name).await.unwrap();
        assert!(session.metadata.is_deleting());
        Txn::new().remove(&session).commit(&*self.store).await.unwrap();
    }

    /// The session came to its end.
    async fn end(&self, name: &str) {
        let old = self.session(name).await.unwrap();
        let mut new = old.clone();
        new.status.end = Some(SessionEnd {
            outcome: EndOutcome::Expired,
            reason: "TtlExpired".to_owned(),
            message: String::new(),
            code: None,
            at: self.clock.now().time,
        });
        Txn::new().update(&old, &new).commit(&*self.store).await.unwrap();
    }

    async fn delete(&self, kind: Kind, name: &str) {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        let options = DeleteOptions::default();
        self.admission.delete(kind, &namespace.into(), &name.into(), &options).await.unwrap();
    }

    async fn head(&self) -> u64 {
        self.store.head().await.unwrap().0
    }

    fn file(&self, path: &str) -> Manifest {
        let full = self.root.path().join(path).display().to_string();
        let files = self.handle.report().files.clone();
        files.into_iter().find(|file| file.path == full).expect("the file is in the report")
    }

    /// The error of a file, its directory left out.
    fn error(&self, path: &str) -> String {
        let root = format!("{}/", self.root.path().display());
        self.file(path).error.unwrap_or_default().replace(&root, "")
    }

    /// What is wrong with the directory.
    fn problem(&self) -> Option<String> {
        let root = self.root.path().display().to_string();
        let files = self.handle.report().files.clone();
        files.into_iter().find(|file| file.path == root).and_then(|file| file.error)
    }
}

fn start(
    roots: &[&Path],
    admission: &Arc<Admission>,
    store: &SharedStore,
    clock: &Arc<ManualClock>,
) -> (Service, Handle) {
    let directories = roots.iter().map(|root| (*root).to_owned()).collect();
    let options = Options { directories, prune: true, native: false };
    Service::new(options, admission.clone(), store.clone(), clock.clone())
}

#[tokio::test]
async fn a_file_is_applied_and_marked_with_its_source() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(session("s", "prompt: hello") + &agent("a")));
    assert!(!bench.handle.report().is_synced);
    bench.after(0).await;
    assert!(bench.handle.report().is_synced);
    let session = bench.session("s").await.unwrap();
    let path = bench.root.path().join("a.yaml").display().to_string();
    assert_eq!(session.metadata.annotations[MANAGED_BY], path);
    assert_eq!(bench.agents().await, ["a"]);
    let file = bench.file("a.yaml");
    assert_eq!((file.documents, file.error), (2, None));
    assert_eq!(file.objects, ["Agent/a", "Session/default/s"]);
    assert!(file.applied_at.is_some());
    // Looking again writes nothing.
    let head = bench.head().await;
    bench.settle().await;
    assert_eq!(bench.head().await, head);
}

#[tokio::test]
async fn an_invalid_file_keeps_what_it_applied_and_says_where_it_is_wrong() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(agent("a") + &agent("b")));
    bench.after(0).await;
    // One wrong document holds the whole file back.
    bench
        .write("a.yaml", &(agent("a").replace("[a]", "[x]") + &agent("c").replace("argv", "args")));
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a", "b"]);
    assert_eq!(
        bench.error("a.yaml"),
        "a.yaml:9:8: spec.args: unknown field, expected a field of this kind"
    );
    let (events, _) = bench.store.list(&keys::kind_prefix(Kind::Event), None, 0).await.unwrap();
    let event: Event = serde_json::from_slice(&events[0].value).unwrap();
    assert_eq!((event.reason.as_str(), event.count), ("ManifestInvalid", 1));
    assert!(event.message.contains("a.yaml:9:8: spec.args: unknown field"));

    bench.write("a.yaml", &(agent("a") + &agent("c")));
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a", "c"]);
    assert_eq!(bench.error("a.yaml"), "");
}

#[tokio::test]
async fn bombs_and_what_cannot_be_read_hold_no_other_file_back() {
    let mut bench = Bench::new();
    let wide = format!("a: [{}]", "x,".repeat(60_000));
    let deep = "[".repeat(200_000);
    let alias = format!(
        "a: &a [{}]\nb: &b [{}]\nc: [{}]",
        "x,".repeat(90),
        "*a,".repeat(50),
        "*b,".repeat(49)
    );
    let large = "x".repeat(300_000);
    for (path, text) in
        [("1.yaml", &wide), ("2.yaml", &deep), ("3.yaml", &alias), ("4.yaml", &large)]
    {
        bench.write(path, text);
    }
    fs::write(bench.root.path().join("5.yaml"), b"a: \xff").unwrap();
    std::os::unix::fs::symlink("/dev/zero", bench.root.path().join("6.yaml")).unwrap();
    bench.write("7.yaml", &agent("a"));
    bench.after(0).await;
    for index in 1..=6 {
        assert_ne!(bench.error(&format!("{index}.yaml")), "", "{index}");
    }
    assert_eq!(bench.agents().await, ["a"]);
}

#[tokio::test]
async fn what_admission_refuses_is_placed_and_nothing_of_the_file_is_applied() {
    let mut bench = Bench::new();
    let turn = "apiVersion: spawnlet.dev/v1alpha1\nkind: Turn\nmetadata: {name: t}\nspec:\n  prompt: x\n  session: nowhere\n";
    bench.write("a.yaml", &(agent("a") + turn));
    bench.after(0).await;
    assert_eq!(bench.agents().await, Vec::<String>::new());
    let error = bench.error("a.yaml");
    assert!(error.starts_with("a.yaml:11:12: spec.session: "), "{error}");
    // The session is made by another file: the next look takes the file.
    bench.write("b.yaml", &session("nowhere", "title: t"));
    bench.settle().await;
    bench.settle().await;
    assert_eq!(bench.error("a.yaml"), "");
    assert_eq!(bench.agents().await, ["a"]);
}

#[tokio::test]
async fn documents_of_a_file_may_refer_to_each_other() {
    let mut bench = Bench::new();
    let turn = "apiVersion: spawnlet.dev/v1alpha1\nkind: Turn\nmetadata: {name: t}\nspec: {prompt: x, session: s}\n---\n";
    bench.write("a.yaml", &(turn.to_owned() + &session("s", "title: t")));
    bench.after(0).await;
    assert_eq!(bench.error("a.yaml"), "");
    assert_eq!(bench.file("a.yaml").objects, ["Session/default/s", "Turn/default/t"]);
}

#[tokio::test]
async fn a_removed_document_and_a_removed_file_delete_what_they_made() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(agent("a") + &agent("b")));
    bench.write("s.yaml", &session("s", "title: t"));
    bench.after(0).await;
    bench.write("a.yaml", &agent("a"));
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a"]);
    bench.remove("s.yaml");
    bench.settle().await;
    let session = bench.session("s").await.unwrap();
    assert!(session.metadata.is_deleting());
    assert_eq!(session.spec.desired_state, DesiredState::Deleted);
    assert!(bench.store.list(keys::MANIFESTS, None, 0).await.unwrap().0.len() == 1);
}

#[tokio::test]
async fn a_file_that_is_back_within_two_seconds_deletes_nothing() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &session("s", "title: t"));
    bench.after(0).await;
    let uid = bench.session("s").await.unwrap().metadata.uid;
    for gone in ["vanished", "empty"] {
        if gone == "empty" {
            bench.write("a.yaml", "");
        } else {
            bench.remove("a.yaml");
        }
        for ms in [0, 200, 1700] {
            bench.after(ms).await;
        }
        bench.write("a.yaml", &session("s", "title: t"));
        for ms in [0, 200, 5000] {
            bench.after(ms).await;
        }
        let session = bench.session("s").await.unwrap();
        assert_eq!(
            (session.metadata.uid, session.spec.desired_state),
            (uid.clone(), DesiredState::Running)
        );
    }
}

#[tokio::test]
async fn what_was_removed_while_the_daemon_was_down_is_deleted() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(agent("a") + &agent("b")));
    bench.after(0).await;
    bench.write("a.yaml", &agent("b"));
    bench.restart();
    bench.settle().await;
    assert_eq!(bench.agents().await, ["b"]);
}

#[tokio::test]
async fn an_object_whose_mark_was_lost_in_a_crash_still_belongs_to_its_file() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(agent("a") + &agent("b")));
    bench.after(0).await;
    for name in ["a", "b"] {
        let mark = keys::manifest(Kind::Agent, &Namespace::default(), &Name::from(name));
        Txn::new().delete_raw(mark).commit(&*bench.store).await.unwrap();
    }
    bench.write("a.yaml", &agent("a"));
    bench.restart();
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a"]);
    assert_eq!(bench.file("a.yaml").objects, ["Agent/a"]);
}

#[tokio::test]
async fn what_others_deleted_is_not_made_again_until_its_document_changes() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &agent("a"));
    bench.after(0).await;
    bench.delete(Kind::Agent, "a").await;
    bench.settle().await;
    // Neither a comment nor a new name of the file nor a restart is a change.
    bench.write("a.yaml", &format!("# note\n{}", agent("a")));
    bench.settle().await;
    fs::rename(bench.root.path().join("a.yaml"), bench.root.path().join("b.yaml")).unwrap();
    bench.settle().await;
    bench.restart();
    bench.settle().await;
    assert_eq!(bench.agents().await, Vec::<String>::new());
    bench.write("b.yaml", &agent("a").replace("[a]", "[b]"));
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a"]);
}

#[tokio::test]
async fn a_session_that_ended_is_made_again_only_when_its_document_changes() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &session("s", "prompt: one"));
    bench.after(0).await;
    let uid = bench.session("s").await.unwrap().metadata.uid;
    bench.end("s").await;
    bench.settle().await;
    bench.restart();
    bench.settle().await;
    assert_eq!(bench.session("s").await.unwrap().metadata.uid, uid);

    bench.write("a.yaml", &session("s", "prompt: two"));
    bench.settle().await;
    // The old one has to go first; that survives a restart too.
    assert!(bench.error("a.yaml").contains("is being replaced"));
    bench.restart();
    bench.after(0).await;
    bench.finish_deletion("s").await;
    bench.after(250).await;
    let session = bench.session("s").await.unwrap();
    assert_ne!(session.metadata.uid, uid);
    assert_eq!(session.spec.prompt.as_deref(), Some("two"));
    assert_eq!(bench.error("a.yaml"), "");
}

#[tokio::test]
async fn a_changed_immutable_field_replaces_the_object_even_if_it_is_changed_back() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &session("s", "title: one"));
    bench.after(0).await;
    let uid = bench.session("s").await.unwrap().metadata.uid;
    bench.write("a.yaml", &session("s", "title: two"));
    bench.settle().await;
    let session_now = bench.session("s").await.unwrap();
    assert_eq!(
        (session_now.metadata.uid, session_now.spec.title.as_deref()),
        (uid.clone(), Some("two"))
    );
    bench.write("a.yaml", &session("s", "prompt: other"));
    bench.settle().await;
    bench.write("a.yaml", &session("s", "title: two"));
    bench.settle().await;
    bench.finish_deletion("s").await;
    bench.after(250).await;
    let session = bench.session("s").await.unwrap();
    assert_ne!(session.metadata.uid, uid);
    assert_eq!(session.spec.title.as_deref(), Some("two"));
}

#[tokio::test]
async fn the_api_and_a_file_do_not_fight_over_a_name() {
    let mut bench = Bench::new();
    let body = serde_json::json!({"metadata": {"name": "a"}, "spec": {"argv": ["mine"]}});
    bench
        .admission
        .create(Kind::Agent, None, body, &WriteOptions::default(), &Writer::Operator)
        .await
        .unwrap();
    bench.write("a.yaml", &(agent("a") + &agent("b")));
    bench.after(0).await;
    assert_eq!(
        bench.error("a.yaml"),
        "a.yaml:3:18: metadata.name: Agent/a exists and is not a file's, expected a free name; delete the object or rename it here"
    );
    let head = bench.head().await;
    for _ in 0..5 {
        bench.settle().await;
    }
    assert_eq!(bench.head().await, head, "no flapping");
    assert_eq!(bench.agents().await, ["a"]);
    bench.delete(Kind::Agent, "a").await;
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a", "b"]);
}

#[tokio::test]
async fn of_two_files_the_first_in_path_order_has_an_object() {
    let mut bench = Bench::new();
    bench.write("b.yaml", &agent("a"));
    bench.write("c.yaml", &(agent("a") + &agent("c")));
    bench.after(0).await;
    let first = bench.root.path().join("b.yaml").display().to_string();
    assert_eq!(bench.agents().await, ["a"]);
    let error = bench.file("c.yaml").error.unwrap();
    assert!(error.contains(&format!(":3:18: metadata.name: Agent/a is in {first} too")), "{error}");
    bench.remove("b.yaml");
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a", "c"]);
    assert_eq!(bench.error("c.yaml"), "");
    assert_eq!(bench.file("c.yaml").objects, ["Agent/a", "Agent/c"]);
}

#[tokio::test]
async fn a_directory_that_is_gone_or_replaced_stops_nothing() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &session("s", "title: t"));
    bench.after(0).await;
    let before = bench.session("s").await.unwrap();
    let (root, aside) = (bench.root.path().to_owned(), bench.root.path().with_extension("aside"));
    fs::rename(&root, &aside).unwrap();
    for _ in 0..3 {
        assert_eq!(bench.after(5000).await, POLL);
    }
    assert!(bench.problem().unwrap().contains("no such file or directory; nothing is deleted"));
    // An empty directory in its place is what a missing mount looks like.
    fs::create_dir(&root).unwrap();
    for _ in 0..3 {
        bench.after(5000).await;
    }
    assert!(bench.problem().unwrap().contains("is a mount missing?"));
    fs::remove_dir(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    bench.settle().await;
    assert_eq!(bench.problem(), None);
    assert_eq!(bench.session("s").await.unwrap(), before);
}

#[tokio::test]
async fn without_pruning_a_removed_file_leaves_what_it_made() {
    let mut bench = Bench::new();
    bench.service.prune = false;
    bench.write("a.yaml", &agent("a"));
    bench.after(0).await;
    bench.remove("a.yaml");
    bench.settle().await;
    bench.settle().await;
    assert_eq!(bench.agents().await, ["a"]);
}

#[tokio::test]
async fn desired_state_of_a_file_never_revives() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &session("s", "title: one"));
    bench.after(0).await;
    let patch = serde_json::json!({"spec": {"desiredState": "cancelled"}});
    let (namespace, name) = (Namespace::from("default"), Name::from("s"));
    bench
        .admission
        .patch(Kind::Session, &namespace, &name, patch, &WriteOptions::default(), &Writer::Operator)
        .await
        .unwrap();
    bench.write("a.yaml", &session("s", "title: two"));
    bench.settle().await;
    let session = bench.session("s").await.unwrap();
    assert_eq!(session.spec.desired_state, DesiredState::Cancelled);
    assert_eq!(session.spec.title.as_deref(), Some("two"));
}

#[tokio::test]
async fn a_namespace_of_a_file_is_made_and_one_that_was_there_is_not_deleted() {
    let mut bench = Bench::new();
    let namespace =
        |name: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n---\n");
    bench.admission.ensure_default_namespace().await.unwrap();
    let team = session("s", "title: t").replace("name: s", "name: s\n  namespace: team");
    bench.write("a.yaml", &(namespace("default") + &namespace("made") + &team));
    bench.after(0).await;
    assert_eq!(bench.error("a.yaml"), "");
    let is_there = async |store: &SharedStore, name: &str| {
        let key = keys::record(Kind::Namespace, &Namespace::default(), &Name::from(name));
        store.get(&key).await.unwrap().is_some()
    };
    for name in ["default", "made", "team"] {
        assert!(is_there(&bench.store, name).await, "{name}");
    }
    bench.write("a.yaml", &team);
    bench.settle().await;
    assert!(is_there(&bench.store, "default").await);
    assert!(!is_there(&bench.store, "made").await);
}

#[tokio::test]
async fn the_report_says_whether_notification_works() {
    let mut bench = Bench::new();
    bench.after(0).await;
    let report = bench.handle.report();
    let condition = report.conditions.get("WatchNative").unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Polling"));
}

/// The service on its own, with real notification and the system's clock.
#[tokio::test]
async fn a_change_on_disk_is_applied_by_notification_alone() {
    let root = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::new());
    let store: SharedStore = memory.clone();
    let clock: SharedClock = Arc::new(SystemClock::new());
    let admission = Admission::new(
        store.clone(),
        memory,
        clock.clone(),
        SharedSlots::default(),
        Limits::default(),
    );
    let options = Options { directories: vec![root.path().to_owned()], prune: true, native: true };
    let (service, mut handle) = Service::new(options, Arc::new(admission), store, clock);
    let shutdown = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(service.run(shutdown.clone()));
    assert!(handle.synced().await);
    let report = handle.when(|report| report.conditions.is_true("WatchNative")).await;
    assert!(report.is_some());
    let has = |name: &'static str| {
        move |report: &Arc<Report>| {
            report.files.iter().any(|file| file.objects.contains(&format!("Agent/{name}")))
        }
    };
    fs::write(root.path().join("a.yaml"), agent("a")).unwrap();
    handle.when(has("a")).await.unwrap();
    // In a directory that is made, removed and made again.
    for name in ["b", "c"] {
        let sub = root.path().join("sub");
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("b.yaml"), agent(name)).unwrap();
        handle.when(has(name)).await.unwrap();
        fs::remove_dir_all(&sub).unwrap();
    }
    fs::remove_file(root.path().join("a.yaml")).unwrap();
    handle.when(|report| report.files.is_empty()).await.unwrap();
    shutdown.cancel();
    tasks.join_all().await;
}
