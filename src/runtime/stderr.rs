//! stderr
