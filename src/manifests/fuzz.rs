//! The fuzz target `yaml_spec`: whatever a file holds, it is read or refused with a place.

use super::document::check_file;
use super::yaml::Format;
use crate::fuzz::{drive, shape};

const SEEDS: &[&str] = &[
    "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata:\n  name: a\nspec:\n  argv: [x]\n",
    "apiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata: {name: s, labels: {a: b}}\n\
     spec:\n  agent: a\n  cwd: /w\n  prompt: |\n    two\n    lines\n  ttl: 1h30m\n---\n\
     apiVersion: spawnlet.dev/v1alpha1\nkind: Workspace\nmetadata: {name: w}\n\
     spec: {folders: [{id: main, path: /w}]}\n",
    "a: &x [1, 2]\nb: *x\nc: !!str 7\n? d\n: e\n",
];

#[test]
fn fuzz_yaml_spec() {
    let seeds: Vec<Vec<u8>> = SEEDS.iter().map(|text| text.as_bytes().to_vec()).collect();
    drive("yaml_spec", &seeds, [5_000, 100_000, 1_000_000], &|input| {
        let mut shapes = Vec::new();
        for format in [Format::of_text(input), Format::Yaml, Format::Json] {
            shapes.push(match check_file(input, format) {
                Ok(documents) => (documents.len(), String::new()),
                Err(faults) => {
                    assert!(!faults.is_empty(), "refused without a word");
                    let said = faults.iter().map(ToString::to_string).collect::<String>();
                    // Words, not the values in them.
                    (faults.len(), said.chars().filter(|c| c.is_alphabetic()).take(12).collect())
                }
            });
        }
        shape(shapes)
    });
}
