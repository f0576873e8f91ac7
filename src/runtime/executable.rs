//! executable
