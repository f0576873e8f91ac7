//! The one integration binary.

mod runtime;
