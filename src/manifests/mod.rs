//! The watched directory.
