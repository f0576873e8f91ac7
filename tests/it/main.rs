//! The one integration binary.

mod real;
mod runtime;
