//! The Kubernetes-style API.
