//! A directory of our own for files that others are to read, removed when dropped.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The directory; only our user can look into it.
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes a new one; an existing one, whoever made it, is an error.
    pub(super) fn new() -> Result<Self, Failure> {
        Self::named(&format!("mvproxy-demo-{}", std::process::id()))
    }

    fn named(name: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(name);
        let failed = |error| Failure::runtime(format_args!("demo: cannot make {}: {error}; remove it, or set TMPDIR", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| Failure::runtime(format_args!("demo: cannot write {}: {error}", path.display())))?;
        Ok(path)
    }

    /// Tests share a process.
    #[cfg(test)]
    pub(super) fn of_test(name: &str) -> Result<Self, Failure> {
        Self::named(&format!("mvproxy-demo-{name}-{}", std::process::id()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed stays in the directory for temporary files, where somebody else removes it.
        fs::remove_dir_all(&self.0).ok();
    }
}
