//! Tests alone: what the pages in `docs/` say of the code is so.

mod conformance;
mod metrics;

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

/// Every file of Rust in a folder of the package, however deep.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect_files(&root().join(folder), &mut files);
    files
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
