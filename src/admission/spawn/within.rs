//! Whether what a child is asked to have is no more than its parent has. Pure.
//!
//! Invariants: nothing is narrowed silently, so each of these only says yes or no; a child of a
//! child of a parent is within the parent, because being within is transitive.

use std::path::{Component, Path};

use crate::api::agent::{McpServer, Sandbox, SandboxMode};
use crate::api::session::{ControlMode, Delegation, ToolFilter, Toolset};

/// What a caller may hand on of its own way to the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) toolsets: Vec<Toolset>,
    pub(super) control_mode: ControlMode,
}

/// Whether a path stands in one of the directories, as it is written: absolute, and without a step
/// upwards. What links on the way do to it is for whoever resolves it.
pub(super) fn is_inside<'a>(path: &str, mut roots: impl Iterator<Item = &'a str>) -> bool {
    let path = Path::new(path);
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    is_plain && roots.any(|root| path.starts_with(root))
}

/// Whether a child's sandbox lets it write nothing that its parent's holds back. That the directories of
/// `workspace-write` are the parent's is held elsewhere.
pub(super) fn sandbox(child: &Sandbox, parent: &Sandbox) -> bool {
    const fn rank(mode: SandboxMode) -> u8 {
        match mode {
            SandboxMode::Off => 0,
            SandboxMode::WorkspaceWrite => 1,
            SandboxMode::ReadOnly => 2,
        }
    }
    let roots = || parent.write_paths.iter().map(String::as_str);
    parent.mode == SandboxMode::Off
        || (rank(child.mode) >= rank(parent.mode)
            && child.write_paths.iter().all(|path| is_inside(path, roots())))
}

/// Whether a filter of tools lets no tool through that the parent's holds back.
pub(super) fn tools(child: Option<&ToolFilter>, parent: Option<&ToolFilter>) -> bool {
    let none = ToolFilter::default();
    let (child, parent) = (child.unwrap_or(&none), parent.unwrap_or(&none));
    // An empty list of allowed tools allows all.
    let is_allowed = |tool: &String| {
        (parent.allow.is_empty() || parent.allow.contains(tool)) && !parent.deny.contains(tool)
    };
    if child.allow.is_empty() {
        return parent.allow.is_empty() && parent.deny.iter().all(|tool| child.deny.contains(tool));
    }
    child.allow.iter().all(|tool| is_allowed(tool) || child.deny.contains(tool))
}

/// The entry of the parent's that a child's stands for: the same one, or one that is named alone.
pub(super) fn server<'a>(child: &McpServer, parent: &'a [McpServer]) -> Option<&'a McpServer> {
    let found = parent.iter().find(|server| server.name == child.name)?;
    (names_only(child) || child == found).then_some(found)
}

/// Whether an entry says no more than which one of the parent's it is.
fn names_only(server: &McpServer) -> bool {
    server.command.is_none() && server.url.is_none()
}

/// What of a child's delegation is more than its parent's; none if nothing is.
pub(super) fn delegation(
    child: &Delegation,
    parent: &Delegation,
    grant: &Grant,
) -> Option<&'static str> {
    if !child.enabled {
        return None;
    }
    let is_wider = [
        ("maxDepth", child.max_depth > parent.max_depth),
        ("maxChildren", child.max_children > parent.max_children),
        ("toolsets", !child.toolsets.iter().all(|toolset| grant.toolsets.contains(toolset))),
        ("controlMode", rank(child.control_mode) > rank(grant.control_mode)),
    ];
    is_wider.into_iter().find(|(_, is_wider)| *is_wider).map(|(field, _)| field)
}

const fn rank(mode: ControlMode) -> u8 {
    match mode {
        ControlMode::ReadOnly => 0,
        ControlMode::Message => 1,
        ControlMode::Full => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sandbox_within_another_lets_more_be_written() {
        let of = |mode, paths: &[&str]| Sandbox {
            mode,
            write_paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        };
        use SandboxMode::{Off, ReadOnly, WorkspaceWrite};
        for mode in [Off, WorkspaceWrite, ReadOnly] {
            assert!(sandbox(&of(mode, &["/anywhere"]), &of(Off, &[])));
        }
        let parent = of(WorkspaceWrite, &["/cache"]);
        assert!(!sandbox(&of(Off, &[]), &parent));
        assert!(sandbox(&of(WorkspaceWrite, &["/cache/child"]), &parent));
        assert!(sandbox(&of(ReadOnly, &[]), &parent));
        assert!(!sandbox(&of(ReadOnly, &["/elsewhere"]), &parent));
        assert!(!sandbox(&of(ReadOnly, &["/cache/../elsewhere"]), &parent));
        assert!(!sandbox(&of(WorkspaceWrite, &[]), &of(ReadOnly, &[])));
    }

    /// Every filter over two tools.
    fn filters() -> Vec<ToolFilter> {
        let lists = || {
            (0..4_u8).map(|bits| {
                let names = ["read", "write"].iter().enumerate();
                let chosen = names.filter(|(at, _)| bits & (1 << at) != 0);
                chosen.map(|(_, name)| (*name).to_owned()).collect::<Vec<_>>()
            })
        };
        lists()
            .flat_map(|allow| lists().map(move |deny| ToolFilter { allow: allow.clone(), deny }))
            .collect()
    }

    fn lets_through(filter: &ToolFilter, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == tool);
        (filter.allow.is_empty() || named(&filter.allow)) && !named(&filter.deny)
    }

    #[test]
    fn no_filter_within_another_lets_more_through() {
        let all = filters();
        for parent in &all {
            assert!(tools(Some(parent), Some(parent)), "{parent:?}");
            for child in &all {
                let is_more = ["read", "write", "other"]
                    .iter()
                    .any(|tool| lets_through(child, tool) && !lets_through(parent, tool));
                assert!(!(is_more && tools(Some(child), Some(parent))), "{child:?} in {parent:?}");
            }
        }
        let narrow = ToolFilter { allow: vec!["read".to_owned()], deny: Vec::new() };
        assert!(tools(Some(&narrow), None));
        assert!(!tools(None, Some(&narrow)), "none is all of them");
    }

    #[test]
    fn a_path_is_inside_by_whole_parts_and_never_upwards() {
        let roots = || ["/srv/a", "/data"].into_iter();
        for (path, inside) in [
            ("/srv/a", true),
            ("/srv/a/b/c", true),
            ("/data/x", true),
            ("/srv/ab", false),
            ("/srv", false),
            ("/srv/a/../b", false),
            ("a", false),
            ("", false),
            ("/", false),
        ] {
            assert_eq!(is_inside(path, roots()), inside, "{path}");
        }
    }

    #[test]
    fn no_part_of_a_delegation_is_wider_than_the_parents() {
        let parent =
            Delegation { enabled: true, max_depth: 3, max_children: 4, ..Delegation::default() };
        let grant = Grant { toolsets: vec![Toolset::Spawn], control_mode: ControlMode::Message };
        let wider = |change: &dyn Fn(&mut Delegation)| {
            let mut child = parent.clone();
            change(&mut child);
            delegation(&child, &parent, &grant)
        };
        assert_eq!(wider(&|_| {}), None);
        assert_eq!(wider(&|child| child.max_depth = 4), Some("maxDepth"));
        assert_eq!(wider(&|child| child.max_children = 5), Some("maxChildren"));
        assert_eq!(wider(&|child| child.toolsets.push(Toolset::Fleet)), Some("toolsets"));
        assert_eq!(wider(&|child| child.control_mode = ControlMode::Full), Some("controlMode"));
        assert_eq!(wider(&|child| child.control_mode = ControlMode::Message), None);
        // What is not given is not compared.
        assert_eq!(wider(&|child| (child.enabled, child.max_depth) = (false, 9)), None);
    }
}
