//! Which deletes are asked about, and what is found, against models that know the truth.

mod judgement;
mod questions;
mod sampler;
