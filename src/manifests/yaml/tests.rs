use serde_json::json;

use super::*;

fn read(text: &str) -> Result<Vec<Document>, Error> {
    parse_documents(text.as_bytes(), Format::Yaml)
}

fn check(text: &str, expect: Value) {
    let documents = read(text).expect(text);
    let values: Vec<_> = documents.into_iter().map(|document| document.value).collect();
    assert_eq!(Value::Array(values), expect, "{text}");
}

fn check_fault(text: &str, expect: &str) {
    assert_eq!(read(text).expect_err(text).to_string(), expect, "{text}");
}

#[test]
fn plain_scalars_follow_yaml_1_2() {
    check(
        "[no, yes, on, off, y, n, true, False, ~, null, '', \"true\"]",
        json!([["no", "yes", "on", "off", "y", "n", true, false, null, null, "", "true"]]),
    );
    check(
        "[1, -2, +3, 007, 0o17, 0x1F, 1.5, .5, 1e3, -1.5E-2, 1_000, 12:30:45, 1.2.3, ., '1', 0xg]",
        json!([[
            1, -2, 3, 7, 15, 31, 1.5, 0.5, 1000.0, -0.015, "1_000", "12:30:45", "1.2.3", ".", "1",
            "0xg"
        ]]),
    );
    check("2026-11-30", json!(["2026-11-30"]));
    check("[18446744073709551615, !!str 12, ! 13, !!int 14]", json!([[u64::MAX, "12", "13", 14]]));
    check(
        "a: |\n  one\n  two\nb: >-\n  three\n  four\n",
        json!([{"a": "one\ntwo\n", "b": "three four"}]),
    );
}

#[test]
fn what_json_cannot_say_is_refused() {
    check_fault(
        "a: .inf",
        "1:4: a: .inf is no number that a record can hold, expected a finite one",
    );
    check_fault(
        "a: 99999999999999999999",
        "1:4: a: 99999999999999999999 does not fit in 64 bits, quote it to have it as text",
    );
    check_fault("a: 1e999", "1:4: a: 1e999 is too large for a number, quote it to have it as text");
    check_fault("a: !mine b", "1:4: a: the tag !mine is unknown, expected no tag");
    check_fault("a: !!int b", "1:4: a: \"b\" is no int, as its tag says");
    check_fault("? [a, b]\n: c", "1:3: a list or a mapping stands for a key, expected text");
}

#[test]
fn documents_are_told_apart_and_empty_ones_left_out() {
    check("# nothing\n", json!([]));
    check("", json!([]));
    check("---\n# nothing\n---\na: 1\n...\n---\nb: 2\n---\n", json!([{"a": 1}, {"b": 2}]));
    check("\u{feff}a: 1", json!([{"a": 1}]));
}

#[test]
fn every_field_has_its_place() {
    let text = "# note\nkind: Session\nmetadata:\n  labels:\n    app.kubernetes.io/name: x\nspec:\n  folders:\n    - id: a\n      path: /a\n    - {id: b, path: /b}\n";
    let document = read(text).unwrap().pop().unwrap();
    let value = |path| document.places.value_of(path).to_string();
    assert_eq!(value("kind"), "2:7");
    assert_eq!(value("metadata.labels.app.kubernetes.io/name"), "5:29");
    assert_eq!(value("spec.folders[0].path"), "9:13");
    assert_eq!(value("spec.folders[1].path"), "10:21");
    assert_eq!(document.places.name_of("spec.folders[0].path").to_string(), "9:7");
    // What is not in the file is told at the nearest field above.
    assert_eq!(value("spec.agent"), "7:3");
    assert_eq!(document.places.name_of("spec.agent").to_string(), "6:1");
    assert_eq!(value("spec.folders[7].path"), "8:5");
}

#[test]
fn keys_that_stand_twice_are_refused_with_both_places() {
    check_fault(
        "spec:\n  agent: a\n  title: t\n  agent: b\n",
        "4:3: spec.agent: stands twice, first at 2:3, expected once",
    );
    check_fault("a: 1\n\"a\": 2\n", "2:1: a: stands twice, first at 1:1, expected once");
    check_fault(
        "l:\n  - {x: 1, x: 1}\n",
        "2:12: l[0].x: stands twice, first at 2:6, expected once",
    );
}

#[test]
fn aliases_stand_for_what_they_name() {
    check(
        "a: &x {b: 1}\nc: *x\nd: [*x, *x]",
        json!([{"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, {"b": 1}]}]),
    );
    // YAML 1.1's merge key is an ordinary key.
    check("<<: 1", json!([{"<<": 1}]));
    check_fault("a: &x [*x]", "1:8: a[0]: an alias of an anchor that is not complete here");
    check_fault("a: &x 1\n---\nb: *x", "3:4: b: an alias of an anchor that is not complete here");
    let fault = read("a: *nowhere").unwrap_err();
    assert_eq!(fault.place, Place { line: 1, column: 4 });
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let below = format!("*a{}, ", level - 1).repeat(9);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(", ")));
    }
    let fault = read(&bomb).unwrap_err();
    assert_eq!(fault.message, "more than 10000 values in the file");
    assert_eq!(fault.place.line, 5);

    let many = format!("a: &a 1\nb: [{}]", "*a, ".repeat(ALIASES_MAX + 1));
    assert_eq!(read(&many).unwrap_err().message, "more than 100 aliases in the file");

    let long = format!("a: &a '{}'\nb: [{}]", "x".repeat(200_000), "*a, ".repeat(90));
    assert!(read(&long).unwrap_err().message.starts_with("aliases make more than"));

    let mut deep = "a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n".to_owned();
    for level in 1..5 {
        deep.push_str(&format!("a{level}: &a{level} [[[[[[[[[*a{}]]]]]]]]]\n", level - 1));
    }
    assert_eq!(read(&deep).unwrap_err().message, "nested more than 32 levels deep");
}

#[test]
fn bounds_hold_for_every_shape_of_a_large_file() {
    for open in ["[", "{a: ", "- ", "[a, ", "{", "? "] {
        let fault = read(&open.repeat(40_000)).expect_err(open);
        assert!(fault.place.line == 1, "{open}: {fault}");
    }
    assert_eq!(read(&"[".repeat(33)).unwrap_err().message, "nested more than 32 levels deep");
    check(
        &format!("{}x{}", "[".repeat(32), "]".repeat(32)),
        (0..32).fold(json!("x"), |below, _| json!([below])).pipe(|value| json!([value])),
    );
    let wide = "a,".repeat(NODES_MAX + 1);
    assert_eq!(
        read(&format!("[{wide}]")).unwrap_err().message,
        "more than 10000 values in the file"
    );
    let keys: String = (0..NODES_MAX).map(|key| format!("k{key}: 1\n")).collect();
    assert_eq!(read(&keys).unwrap_err().message, "more than 10000 values in the file");

    let long = format!("a: {}", "x".repeat(FILE_BYTES_MAX - 3));
    assert_eq!(read(&long).unwrap()[0].value["a"].as_str().unwrap().len(), FILE_BYTES_MAX - 3);
    check_fault(
        &"x".repeat(FILE_BYTES_MAX + 1),
        "1:1: the file has 262145 bytes, expected at most 262144",
    );
}

/// Ends a chain of calls with a function.
trait Pipe: Sized {
    fn pipe<T>(self, then: impl FnOnce(Self) -> T) -> T {
        then(self)
    }
}
impl Pipe for Value {}

#[test]
fn broken_syntax_and_bytes_are_told_with_their_place() {
    let fault = read("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
    assert!(fault.message.ends_with("expected valid YAML"), "{fault}");
    assert!(fault.place.line >= 2, "{fault}");
    let fault = parse_documents("a: 1\nbä: \u{e9}".as_bytes(), Format::Yaml).unwrap();
    assert_eq!(fault.len(), 1);
    let fault = parse_documents(b"a: 1\nb\xc3\xa4: \xff", Format::Yaml).unwrap_err();
    assert_eq!(fault.to_string(), "2:5: the file is not UTF-8 here, expected UTF-8 text");
}

#[test]
fn half_written_files_never_make_a_panic() {
    let text = "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {name: a, labels: {\"x\": 'y'}}\nspec:\n  argv: [\"a\", &b |\n";
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let _ = read(&text[..end]);
        let _ = parse_documents(&text.as_bytes()[..end], Format::Json);
    }
}

#[test]
fn json_files_are_read_strictly_with_places() {
    let read = |text: &str| parse_documents(text.as_bytes(), Format::Json);
    let documents = read("{\n\t\"kind\": \"Agent\",\n\t\"spec\": {\"argv\": [\"ä\", \"\\ud83d\\ude00\"], \"n\": 1.0}\n}\n{}").unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(
        documents[0].value,
        json!({"kind": "Agent", "spec": {"argv": ["ä", "😀"], "n": 1.0}})
    );
    assert_eq!(documents[0].places.value_of("spec.argv[1]").to_string(), "3:25");
    let check = |text: &str, expect: &str| assert_eq!(read(text).unwrap_err().to_string(), expect);
    check(
        "{\"a\": {\"b\": 1,\n \"b\": 2}}",
        "2:7: a.b: stands twice, first at 1:13, expected once",
    );
    check("{\"a\": tru}", "1:10: expected ident, expected valid JSON");
    check(
        "{\"a\": 1e5, \"b\": 99999999999999999999}",
        "1:17: b: 99999999999999999999 does not fit in 64 bits, quote it to have it as text",
    );
    assert!(read(&"[".repeat(100_000)).is_err());
    let deep = format!("{}{}", "[".repeat(33), "]".repeat(33));
    assert_eq!(read(&deep).unwrap_err().message, "nested more than 32 levels deep");
    let wide = format!("[{}1]", "1,".repeat(100_000));
    assert_eq!(read(&wide).unwrap_err().message, "more than 10000 values in the file");
}

#[derive(serde::Deserialize, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    listen: String,
    limits: Limits,
    extra: Option<Limits>,
}

#[derive(serde::Deserialize, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
struct Limits {
    inbox: u32,
}

#[test]
fn a_configuration_is_one_document_of_known_fields() {
    let decode = |text: &str| {
        decode_config::<Config>(text.as_bytes())
            .map_err(|faults| faults.iter().map(Error::to_string).collect::<Vec<_>>())
    };
    assert_eq!(decode("# all defaults\n"), Ok(Config::default()));
    let config = decode("listen: no\nlimits: {inbox: 3}").unwrap();
    assert_eq!((config.listen.as_str(), config.limits.inbox), ("no", 3));
    assert_eq!(
        decode("lissen: x\nlimits:\n  outbox: 1\nextra:\n  inbux: 2\n"),
        Err(vec![
            "1:1: lissen: unknown field, expected a field of this kind".to_owned(),
            "3:3: limits.outbox: unknown field, expected a field of this kind".to_owned(),
            "5:3: extra.inbux: unknown field, expected a field of this kind".to_owned(),
        ])
    );
    assert_eq!(
        decode("limits:\n  inbox: many\n"),
        Err(vec!["2:10: limits.inbox: invalid type: string \"many\", expected u32".to_owned()])
    );
    assert_eq!(
        decode("a: 1\n---\nb: 2\n"),
        Err(vec!["3:1: a second document, expected one document".to_owned()])
    );
}

/// A text that has most of the grammar in it.
const CORPUS: &str = "%YAML 1.2\n---\n# c\na: &x [1, 'two', \"th\\u0072ee\", {b: *x}]\n? k\n: |+\n  l\n\n  m\n!!str c: >-\n  f\nd:\n- - 1\n  - ~\n- {e: [], f: {}}\n...\n--- !t\nz: 0x1F\n";

proptest::proptest! {
    #[test]
    fn no_input_makes_a_parser_panic(
        cuts in proptest::collection::vec((0..CORPUS.len(), "[\\[\\]{}:,\\-?&*!|>'\"%@`# \\n\\ta-b0-9.\u{e9}\u{1f600}\u{0}]{0,6}", 0..9_usize), 1..6),
    ) {
        let mut text = CORPUS.to_owned();
        for (at, insert, remove) in cuts {
            let at = text.floor_char_boundary(at.min(text.len()));
            let end = text.floor_char_boundary((at + remove).min(text.len()));
            text.replace_range(at..end.max(at), &insert);
        }
        for format in [Format::Yaml, Format::Json] {
            if let Err(fault) = parse_documents(text.as_bytes(), format) {
                assert!(!fault.message.starts_with("the parser failed"), "{text:?}");
            }
        }
    }
}
