//! The one way in for desired state.
