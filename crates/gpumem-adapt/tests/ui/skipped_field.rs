//! A field that is skipped and cannot be cloned.

use gpumem_adapt::Adapt;

struct Connection;

#[derive(Adapt)]
struct Model {
    #[adapt(skip)]
    connection: Connection,
}

fn main() {}
