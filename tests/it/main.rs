//! The one integration binary.

mod chaos;
mod runtime;
