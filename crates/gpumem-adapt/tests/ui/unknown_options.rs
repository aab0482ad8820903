//! Options that do not exist, and types that cannot be taken apart.

use gpumem_adapt::Adapt;

#[derive(Adapt)]
struct Field(#[adapt(ignore)] String);

#[derive(Adapt)]
#[adapt(skip)]
struct Type;

#[derive(Adapt)]
enum Variant {
    #[adapt(skip)]
    Unit,
}

#[derive(Adapt)]
struct Twice(#[adapt(skip, with = f)] String);

#[derive(Adapt)]
union Union {
    number: u32,
}

fn main() {}
