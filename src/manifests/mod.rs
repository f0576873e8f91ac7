//! The watched directory: manifest files in, desired state out.

pub mod yaml;
