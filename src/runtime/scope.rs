//! scope
