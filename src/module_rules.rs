//! A test alone: modules depend one way, never in a circle.

use std::{collections::BTreeSet, fs, path::Path};

/// Which modules of ours each module may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("opamp", &[]),
    ("api", &[]),
    ("kubernetes", &[]),
    ("admin", &[]),
    ("journal", &[]),
    ("server", &["opamp"]),
    ("catalog", &["opamp", "api", "kubernetes"]),
    ("agents", &["opamp", "api", "kubernetes"]),
    ("status", &["opamp", "api", "kubernetes", "catalog", "agents"]),
    ("effective_configs", &["opamp", "api", "kubernetes", "catalog", "status"]),
    ("credentials", &["opamp", "api", "kubernetes", "status", "journal"]),
    ("authentication", &["opamp", "api", "kubernetes", "catalog", "credentials", "server", "events", "journal"]),
    ("lease", &["api", "kubernetes"]),
    ("revisions", &["opamp", "api", "kubernetes", "catalog"]),
    ("events", &["api", "kubernetes"]),
    ("connection_settings", &["api", "events", "revisions", "status"]),
    ("remote_configs", &["api", "kubernetes", "catalog", "revisions", "events", "status"]),
    ("fleets", &["opamp", "api", "kubernetes", "catalog", "revisions", "agents", "events", "lease", "status"]),
    (
        "controllers",
        &[
            "opamp",
            "api",
            "kubernetes",
            "catalog",
            "revisions",
            "agents",
            "events",
            "lease",
            "status",
            "effective_configs",
            "credentials",
            "fleets",
            "remote_configs",
            "connection_settings",
        ],
    ),
    (
        "bridge",
        &[
            "authentication",
            "opamp",
            "api",
            "kubernetes",
            "catalog",
            "server",
            "status",
            "agents",
            "lease",
            "effective_configs",
            "credentials",
        ],
    ),
];

#[test]
fn modules_depend_only_on_those_they_may() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if ["lib", "main", "run", "command_line", "documentation", "module_rules"].contains(&module.as_str()) {
            continue;
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == module) else {
            faults.push(format!("{module} has no line in the list of modules"));
            continue;
        };
        let mut used = BTreeSet::new();
        collect_uses(&path, &mut used);
        used.remove(&module);
        faults.extend(
            used.iter().filter(|name| !allowed.contains(&name.as_str())).map(|name| format!("{module} uses {name}")),
        );
    }
    assert_eq!(faults, Vec::<String>::new());
}

/// The first segment of each `crate::…` path that stands outside of comments.
fn collect_uses(path: &Path, used: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect_uses(&entry.unwrap().path(), used);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    for (at, _) in code.match_indices("crate::") {
        let rest = code[at + "crate::".len()..].trim_start();
        for part in
            rest.trim_start_matches('{').split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).take(1)
        {
            if !part.is_empty() {
                used.insert(part.to_owned());
            }
        }
        if let Some(group) = rest.strip_prefix('{') {
            used.extend(top_level_names(group));
        }
    }
}

/// The names of `use crate::{a, b::{c, d}}` up to its closing brace, nested ones aside.
fn top_level_names(group: &str) -> Vec<String> {
    let (mut depth, mut names, mut word, mut head) = (0, Vec::new(), String::new(), true);
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(std::mem::take(&mut word));
                head = true;
            }
            ':' if depth == 0 => head = false,
            letter if depth == 0 && head && (letter.is_alphanumeric() || letter == '_') => word.push(letter),
            _ => {}
        }
    }
    names.push(word);
    names.retain(|name| !name.is_empty());
    names
}
