//! Tests alone: what the pages in `docs/` say of the code is so.

mod commands;
mod conformance;
mod metrics;
mod names;
mod security;

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of the package.
fn text_of(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Every file with this extension in a folder of the package, however deep.
fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files
}
