use super::*;

const HERE: Identity = Identity::new(7, 1);
const ELSEWHERE: Identity = Identity::new(8, 1);

fn object(name: &str) -> ObjectId {
    ObjectId { kind: Kind::Session, namespace: "default".into(), name: name.into() }
}

fn source(path: &str) -> Source {
    Source { directory: 0, path: path.to_owned() }
}

fn claim(text: &str) -> Claim {
    let (name, hash) = text.split_once('=').unwrap_or((text, "1"));
    Claim { object: object(name), hash: DocumentHash(hash.to_owned()), place: Place::START }
}

fn claims(names: &str) -> Vec<Claim> {
    names.split_whitespace().map(claim).collect()
}

/// Drives the planner as the service does: what is planned is done at once.
struct Bench {
    world: World,
    now: Mono,
}

impl Bench {
    fn new(files: &[(&str, &str)]) -> Self {
        let mut bench = Self { world: World { prune: true, ..World::default() }, now: Mono(1000) };
        bench.look(files);
        bench
    }

    fn view(files: &[(&str, &str)]) -> BTreeMap<String, FileView> {
        files
            .iter()
            .map(|(path, names)| {
                let view = match *names {
                    "broken" => FileView::Broken,
                    names => FileView::Valid(claims(names)),
                };
                ((*path).to_owned(), view)
            })
            .collect()
    }

    fn look(&mut self, files: &[(&str, &str)]) -> Plan {
        self.look_at(DirectoryView::Listed {
            identity: HERE,
            complete: true,
            files: Self::view(files),
        })
    }

    fn look_at(&mut self, view: DirectoryView) -> Plan {
        self.world.directories = vec![view];
        let plan = plan(&self.world, self.now);
        self.world.absences = plan.absences.clone();
        for (source, documents) in &plan.apply {
            let DirectoryView::Listed { identity, files, .. } = &self.world.directories[0] else {
                unreachable!("nothing is applied from a directory that is gone")
            };
            let FileView::Valid(claims) = &files[&source.path] else { continue };
            for index in documents {
                let Claim { object, hash, .. } = claims[*index].clone();
                let (source, identity) = (source.clone(), *identity);
                let mark = Mark { source, hash, uid: "u".into(), identity };
                self.world.marks.insert(object, mark);
            }
        }
        for object in &plan.delete {
            self.world.marks.remove(object);
        }
        plan
    }

    fn after(&mut self, ms: u64) -> &mut Self {
        self.now = self.now.plus(Duration::from_millis(ms));
        self
    }
}

fn names(objects: &[ObjectId]) -> Vec<&str> {
    objects.iter().map(|object| object.name.as_str()).collect()
}

#[test]
fn what_is_applied_is_not_applied_again() {
    let mut bench = Bench::new(&[("a.yaml", "x y")]);
    assert_eq!(bench.world.marks.len(), 2);
    assert_eq!(bench.after(10).look(&[("a.yaml", "x y")]), Plan::default());
    let plan = bench.look(&[("a.yaml", "x y=2")]);
    assert_eq!(plan.apply, BTreeMap::from([(source("a.yaml"), vec![1])]));
}

#[test]
fn a_document_that_was_removed_deletes_after_the_second_listing() {
    let mut bench = Bench::new(&[("a.yaml", "x y")]);
    let plan = bench.after(10).look(&[("a.yaml", "x")]);
    assert!(plan.delete.is_empty());
    assert_eq!(plan.wake, Some(Mono(3010)));
    assert!(bench.after(1999).look(&[("a.yaml", "x")]).delete.is_empty());
    assert_eq!(names(&bench.after(1).look(&[("a.yaml", "x")]).delete), ["y"]);
    assert_eq!(bench.after(1).look(&[("a.yaml", "x")]), Plan::default());
}

#[test]
fn a_file_that_vanishes_and_comes_back_in_time_deletes_nothing() {
    let mut bench = Bench::new(&[("a.yaml", "x")]);
    for gone in [&[][..], &[("a.yaml", "")][..]] {
        bench.after(10).look(gone);
        assert!(bench.after(1990).look(gone).delete.is_empty());
        assert_eq!(bench.after(5).look(&[("a.yaml", "x")]), Plan::default());
        // The next absence counts from its own beginning.
        assert!(bench.after(10).look(gone).delete.is_empty());
        assert_eq!(bench.after(10).look(&[("a.yaml", "x")]), Plan::default());
    }
    bench.after(10).look(&[]);
    assert_eq!(names(&bench.after(2000).look(&[]).delete), ["x"]);
}

#[test]
fn a_broken_or_refused_file_keeps_what_it_applied() {
    let mut bench = Bench::new(&[("a.yaml", "x y")]);
    for _ in 0..3 {
        assert_eq!(bench.after(5000).look(&[("a.yaml", "broken")]), Plan::default());
    }
    let files = BTreeMap::from([("a.yaml".to_owned(), FileView::Refused(claims("x=2")))]);
    let view = DirectoryView::Listed { identity: HERE, complete: true, files };
    for _ in 0..3 {
        let plan = bench.after(5000).look_at(view.clone());
        // It is tried again, and y stays.
        assert_eq!(plan.apply, BTreeMap::from([(source("a.yaml"), vec![0])]));
        assert!(plan.absences.is_empty() && plan.delete.is_empty());
    }
}

#[test]
fn nothing_is_deleted_while_the_directory_is_gone_or_listed_in_part() {
    let mut bench = Bench::new(&[("a.yaml", "x")]);
    for _ in 0..3 {
        assert_eq!(bench.after(5000).look_at(DirectoryView::Gone), Plan::default());
        let part =
            DirectoryView::Listed { identity: HERE, complete: false, files: BTreeMap::new() };
        assert_eq!(bench.after(5000).look_at(part), Plan::default());
    }
    assert_eq!(bench.after(1).look(&[("a.yaml", "x")]), Plan::default());
}

#[test]
fn what_is_missing_in_another_directory_at_the_path_is_held() {
    let mut bench = Bench::new(&[("a.yaml", "x"), ("b.yaml", "y")]);
    let other = |files: &[(&str, &str)]| DirectoryView::Listed {
        identity: ELSEWHERE,
        complete: true,
        files: Bench::view(files),
    };
    for _ in 0..3 {
        let plan = bench.after(5000).look_at(other(&[]));
        assert_eq!(plan.held.len(), 2);
        assert!(plan.delete.is_empty());
    }
    // The old directory is back: nothing is made anew.
    assert_eq!(bench.after(1).look(&[("a.yaml", "x"), ("b.yaml", "y")]), Plan::default());
    // One that holds a part of it is its successor.
    bench.after(1).look_at(other(&[("a.yaml", "x")]));
    assert!(bench.after(1).look_at(other(&[("a.yaml", "x")])).held.is_empty());
    let plan = bench.after(2000).look_at(other(&[("a.yaml", "x")]));
    assert_eq!(names(&plan.delete), ["y"]);
}

#[test]
fn mass_deletion_is_held_until_the_files_are_back() {
    let list: Vec<String> = (0..30).map(|index| format!("s{index:02}")).collect();
    let check = |made: usize, left: usize, held: bool| {
        let (all, rest) = (list[..made].join(" "), list[..left].join(" "));
        let mut bench = Bench::new(&[("a.yaml", &all)]);
        bench.after(10).look(&[("a.yaml", &rest)]);
        let plan = bench.after(2000).look(&[("a.yaml", &rest)]);
        assert_eq!(!plan.held.is_empty(), held, "{made} -> {left}");
        assert_eq!(plan.delete.len(), if held { 0 } else { made - left }, "{made} -> {left}");
        let plan = bench.after(60_000).look(&[("a.yaml", &rest)]);
        assert!(plan.delete.is_empty(), "{made} -> {left}");
        let plan = bench.after(10).look(&[("a.yaml", &all)]);
        assert!(plan.held.is_empty() && plan.delete.is_empty(), "{made} -> {left}");
    };
    check(30, 19, true); // 11 gone
    check(30, 20, false); // 10 gone, a third
    check(9, 4, true); // 5 gone, more than half
    check(10, 5, false); // 5 gone, half
    check(4, 0, false); // all gone, and fewer than 5
    check(5, 0, true);
}

#[test]
fn the_first_file_in_path_order_has_an_object_that_two_files_name() {
    let mut bench = Bench::new(&[("b.yaml", "x y")]);
    // A later file is not applied at all, also not what it alone has.
    let plan = bench.after(1).look(&[("b.yaml", "x y"), ("c.yaml", "z x=2")]);
    assert!(plan.apply.is_empty());
    let conflict = Conflict { source: source("c.yaml"), document: 1, first: source("b.yaml") };
    assert_eq!(plan.conflicts, [conflict]);
    // An earlier one takes it over, and the file that had it keeps the rest.
    let plan = bench.after(1).look(&[("a.yaml", "x=3"), ("b.yaml", "x y")]);
    assert_eq!(plan.apply, BTreeMap::from([(source("a.yaml"), vec![0])]));
    assert_eq!(plan.conflicts[0].source, source("b.yaml"));
    for _ in 0..3 {
        let plan = bench.after(5000).look(&[("a.yaml", "x=3"), ("b.yaml", "x y")]);
        assert!(plan.apply.is_empty() && plan.delete.is_empty(), "no flapping");
    }
}

#[test]
fn a_renamed_file_changes_the_source_alone() {
    let mut bench = Bench::new(&[("a.yaml", "x")]);
    let plan = bench.after(1).look(&[("b.yaml", "x")]);
    assert_eq!(plan.apply, BTreeMap::from([(source("b.yaml"), vec![0])]));
    assert!(plan.absences.is_empty());
    assert_eq!(bench.world.marks[&object("x")].source, source("b.yaml"));
    assert_eq!(bench.after(5000).look(&[("b.yaml", "x")]), Plan::default());
}

#[test]
fn without_pruning_nothing_is_deleted() {
    let mut bench = Bench::new(&[("a.yaml", "x")]);
    bench.world.prune = false;
    bench.after(10).look(&[]);
    assert_eq!(bench.after(5000).look(&[]), Plan::default());
}

#[test]
fn sessions_are_deleted_before_what_they_refer_to() {
    let mut bench = Bench::new(&[("a.yaml", "x")]);
    let agent = ObjectId { kind: Kind::Agent, namespace: "".into(), name: "a".into() };
    let mark = bench.world.marks[&object("x")].clone();
    bench.world.marks.insert(agent.clone(), mark);
    bench.after(10).look(&[]);
    assert_eq!(bench.after(2000).look(&[]).delete, [object("x"), agent]);
}
