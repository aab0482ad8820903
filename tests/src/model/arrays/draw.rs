//! proptest strategies that generate cases, and so determine how cases shrink.
//!
//! The strategies and their order determine the meaning of a seed: a change here changes the program of every recorded seed.

use super::operation::{
    Arithmetic, AxisIndices, Case, Derived, End, Formula, How, Node, Numbers, On, Operation, Owned, Place,
    Reduction, Right, Work,
};
use super::trees::trees;
use super::views::{Look, Turn};
use crate::model::operation::Pick;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

/// Generates a case.
pub(super) fn case() -> impl Strategy<Value = Case> {
    let numbers = prop_oneof![Just(Numbers::Words), Just(Numbers::Floats)];
    let machine = (any::<u64>().no_shrink(), prop_oneof![3 => Just(true), 1 => Just(false)], numbers);
    // Drawn last, so that the other operations of a recorded seed stay what they were.
    let calculations = vec((any::<usize>(), calculation()), 0..=16);
    let derived = vec((any::<usize>(), derive()), 0..=6);
    (machine, vec(created(), 1..=4), vec(operation(), 1..=40), calculations, derived).prop_map(
        |(machine, mut operations, more, calculations, derived)| {
            let (sim_seed, has_link, numbers) = machine;
            let first = operations.len();
            operations.extend(more);
            for (place, calculation) in calculations.into_iter().chain(derived) {
                operations.insert(first + place % (operations.len() - first + 1), calculation);
            }
            Case { sim_seed, has_link, numbers, operations }
        },
    )
}

/// Expressions and what is calculated from them, in programs, graphs and on parts of arrays.
fn calculation() -> impl Strategy<Value = Operation> {
    let work = || {
        prop_oneof![
            4 => (formula(), look()).prop_map(|(formula, source)| Work::Express(formula, source)),
            4 => (formula(), look()).prop_map(|(formula, source)| Work::Update(formula, source)),
            1 => (prop_oneof![Just(Arithmetic::Div), Just(Arithmetic::Rem)], right())
                .prop_map(|(operation, right)| Work::Calculate(operation, right)),
            1 => work(),
        ]
    };
    let node = (written(), work()).prop_map(|(target, work)| Node { target, work });
    let steps = vec((any::<bool>(), on(), work()), 1..6);
    let reduction = prop_oneof![
        Just(Reduction::Sum),
        Just(Reduction::Max),
        Just(Reduction::Min),
        Just(Reduction::ArgMax),
        Just(Reduction::ArgMin),
        Just(Reduction::Any),
        Just(Reduction::All),
        Just(Reduction::Count),
    ];
    prop_oneof![
        6 => (look(), look(), formula(), on())
            .prop_map(|(left, right, formula, on)| Operation::Express { left, right, formula, on }),
        8 => (written(), work(), on()).prop_map(|(target, work, on)| Operation::Write { target, work, on }),
        2 => (pick(), pick(), vec(turn(), 0..3), formula(), on()).prop_map(
            |(first, second, turns, formula, on)| Operation::UpdateTwo { first, second, turns, formula, on }
        ),
        4 => (look(), look(), any::<i8>(), reduction, weighted(0.6, any::<usize>()), on()).prop_map(
            |(left, right, number, reduction, axis, on)| {
                Operation::Reduce { left, right, number, reduction, axis, on }
            }
        ),
        3 => (look(), indices(), on()).prop_map(|(source, indices, on)| Operation::Select { source, indices, on }),
        3 => (written(), look(), indices(), on())
            .prop_map(|(target, source, indices, on)| Operation::ScatterAdd { target, source, indices, on }),
        2 => (look(), any::<usize>(), any::<i8>(), on())
            .prop_map(|(source, axis, number, on)| Operation::Choose { source, axis, number, on }),
        2 => (look(), look(), on()).prop_map(|(left, right, on)| Operation::Matrices { left, right, on }),
        2 => (on(), vec(node, 1..4))
            .prop_map(|(on, nodes)| Operation::Capture { on, nodes, numbers: Vec::new(), out: None }),
        3 => (pick(), on(), on()).prop_map(|(graph, on, reader)| {
            Operation::Launch { graph, on, set: None, reader, is_kept: false }
        }),
        2 => (pick(), 0_usize..3, any::<usize>(), any::<bool>(), steps, any::<bool>()).prop_map(
            |(array, axis, at, interleaves, steps, threads)| {
                Operation::Halves { array, axis, at, interleaves, steps, threads }
            }
        ),
    ]
}

/// A random formula, and what is calculated from it.
fn derive() -> impl Strategy<Value = Operation> {
    let axis = any::<usize>;
    let derived = prop_oneof![
        3 => Just(Derived::Value),
        2 => [axis(), axis()].prop_map(Derived::Sums),
        1 => [axis(), axis()].prop_map(Derived::Maxima),
        2 => weighted(0.7, axis()).prop_map(Derived::Prefixes),
        1 => weighted(0.7, axis()).prop_map(Derived::LogSumExp),
        1 => axis().prop_map(Derived::Softmax),
    ];
    ([look(), look()], trees(), derived, on()).prop_map(|(sources, tree, derived, on)| Operation::Derive {
        sources,
        tree,
        derived,
        on,
    })
}

fn formula() -> impl Strategy<Value = Formula> {
    any::<(u8, i8)>().prop_map(|(row, number)| Formula { row, number })
}

fn indices() -> impl Strategy<Value = AxisIndices> {
    (any::<usize>(), vec(any::<u8>(), 0..20), any::<bool>())
        .prop_map(|(axis, indices, on_device)| AxisIndices { axis, indices, on_device })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![14 => created(), 60 => on_device(), 22 => with_host(), 24 => graphs(), 10 => shared(), 12 => life()]
}

fn created() -> impl Strategy<Value = Operation> {
    let how = prop_oneof![
        2 => any::<i8>().prop_map(How::Value),
        3 => any::<bool>().prop_map(How::Host),
        1 => any::<i8>().prop_map(How::Range),
        1 => Just(How::Indices),
        2 => any::<u8>().prop_map(How::Random),
        1 => any::<u8>().prop_map(How::Normal),
        1 => Just(How::Eye),
        1 => Just(How::Ones),
        1 => Just(How::Uninit),
        2 => Just(How::Growable),
    ];
    (on(), place(), shape(), how).prop_map(|(on, place, shape, how)| Operation::New { on, place, shape, how })
}

fn on_device() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (look(), arithmetic(), right(), on())
            .prop_map(|(left, operation, right, on)| Operation::Calculate { left, operation, right, on }),
        24 => (written(), work(), on()).prop_map(|(target, work, on)| Operation::Write { target, work, on }),
        5 => (look(), on(), place()).prop_map(|(source, on, place)| Operation::Copy { source, on, place }),
        3 => (look(), on()).prop_map(|(source, on)| Operation::Own { source, on }),
        4 => (look(), on(), on(), any::<bool>())
            .prop_map(|(source, on, reader, is_kept)| Operation::Sum { source, on, reader, is_kept }),
        3 => (look(), look(), on()).prop_map(|(left, right, on)| Operation::Product { left, right, on }),
        3 => (vec(look(), 1..4), 0_usize..2, any::<bool>())
            .prop_map(|(parts, axis, stacks)| Operation::Join { parts, axis, stacks }),
        3 => (pick(), 0_usize..200, any::<i8>())
            .prop_map(|(array, len, value)| Operation::Resize { array, len, value }),
        2 => (pick(), look()).prop_map(|(array, other)| Operation::Append { array, other }),
        1 => (pick(), 0_usize..50).prop_map(|(array, count)| Operation::Extend { array, count }),
    ]
}

fn with_host() -> impl Strategy<Value = Operation> {
    let owned = || prop_oneof![Just(Owned::Vec), Just(Owned::Array), Just(Owned::Pinned)];
    let end = prop_oneof![3 => Just(End::Wait), 3 => Just(End::Poll), 1 => Just(End::Drop)];
    prop_oneof![
        3 => (written(), on()).prop_map(|(target, on)| Operation::Upload { target, on }),
        4 => (look(), on()).prop_map(|(source, on)| Operation::Check { source, on }),
        3 => pick().prop_map(|array| Operation::HostRead { array }),
        3 => (pick(), any::<usize>(), any::<i8>())
            .prop_map(|(array, index, value)| Operation::HostWrite { array, index, value }),
        3 => (pick(), pick(), any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|(array, other, value, leaks)| Operation::Lend { array, other, value, leaks }),
        2 => (pick(), pick()).prop_map(|(array, other)| Operation::Swap { array, other }),
        1 => (0_usize..3000, on(), on(), any::<i8>())
            .prop_map(|(len, on, other, value)| Operation::Registered { len, on, other, value }),
        3 => (on(), shape(), owned()).prop_map(|(on, shape, owned)| Operation::StartUpload { on, shape, owned }),
        5 => (look(), on(), owned())
            .prop_map(|(source, on, owned)| Operation::StartDownload { source, on, owned }),
        6 => (pick(), end).prop_map(|(transfer, end)| Operation::EndTransfer { transfer, end }),
    ]
}

fn graphs() -> impl Strategy<Value = Operation> {
    let out = || weighted(0.6, (look(), any::<i8>()));
    let captured = || (vec(node(), 0..6), vec(any::<i8>(), 0..3), out());
    prop_oneof![
        4 => (on(), captured()).prop_map(|(on, (nodes, numbers, out))| Operation::Capture { on, nodes, numbers, out }),
        4 => (pick(), captured())
            .prop_map(|(graph, (nodes, numbers, out))| Operation::Update { graph, nodes, numbers, out }),
        10 => (pick(), on(), weighted(0.4, (pick(), any::<i8>())), on(), any::<bool>())
            .prop_map(|(graph, on, set, reader, is_kept)| Operation::Launch { graph, on, set, reader, is_kept }),
        1 => pick().prop_map(|graph| Operation::DropGraph { graph }),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    (written(), work()).prop_map(|(target, work)| Node { target, work })
}

/// Work of several streams or threads on one array.
fn shared() -> impl Strategy<Value = Operation> {
    let steps = vec((any::<bool>(), on(), work()), 1..8);
    prop_oneof![
        3 => (pick(), 0_usize..3, any::<usize>(), any::<bool>(), steps, any::<bool>()).prop_map(
            |(array, axis, at, interleaves, steps, threads)| {
                Operation::Halves { array, axis, at, interleaves, steps, threads }
            }
        ),
        1 => (vec(pick(), 1..3), 2_usize..4, vec(work(), 1..4))
            .prop_map(|(arrays, thread_count, work)| Operation::Share { arrays, thread_count, work }),
    ]
}

fn life() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (pick(), on()).prop_map(|(array, on)| Operation::Move { array, on }),
        2 => (pick(), on()).prop_map(|(array, on)| Operation::Block { array, on }),
        2 => (pick(), on(), any::<i8>()).prop_map(|(array, on, value)| Operation::Dlpack { array, on, value }),
        6 => (pick(), prop::bool::weighted(0.3))
            .prop_map(|(array, elsewhere)| Operation::Drop { array, elsewhere }),
        1 => on().prop_map(|on| Operation::Synchronize { on }),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => any::<i8>().prop_map(Work::Fill),
        6 => (arithmetic(), right()).prop_map(|(operation, right)| Work::Calculate(operation, right)),
        2 => (arithmetic(), look(), any::<i8>())
            .prop_map(|(operation, source, value)| Work::Temporary(operation, source, value)),
        2 => (arithmetic(), pick()).prop_map(|(operation, number)| Work::Number(operation, number)),
        5 => look().prop_map(Work::Assign),
    ]
}

fn right() -> impl Strategy<Value = Right> {
    prop_oneof![1 => any::<i8>().prop_map(Right::Value), 3 => look().prop_map(Right::Array)]
}

fn arithmetic() -> impl Strategy<Value = Arithmetic> {
    prop_oneof![3 => Just(Arithmetic::Add), 2 => Just(Arithmetic::Sub), 1 => Just(Arithmetic::Mul)]
}

/// Mostly small, so that elements are cheap to compare; sometimes long enough for several blocks of a kernel, or empty.
fn shape() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => vec(prop_oneof![12 => 1_usize..9, 1 => Just(0)], 1..4),
        3 => vec(1_usize..200, 1..2),
        1 => vec(prop_oneof![Just(257_usize), Just(5000)], 1..2),
        1 => vec(Just(40_usize), 2..3),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![4 => Just(Place::Device), 1 => Just(Place::Unified), 1 => Just(Place::Pinned)]
}

fn on() -> impl Strategy<Value = On> {
    any::<u8>().prop_map(On)
}

/// A view for reading.
fn look() -> impl Strategy<Value = Look> {
    (pick(), vec(prop_oneof![7 => turn(), 1 => (1_usize..4).prop_map(Turn::Broadcast), 1 => any::<usize>().prop_map(Turn::Insert)], 0..3))
        .prop_map(|(array, turns)| Look { array, turns })
}

/// A view for writing.
fn written() -> impl Strategy<Value = Look> {
    (pick(), vec(turn(), 0..3)).prop_map(|(array, turns)| Look { array, turns })
}

fn turn() -> impl Strategy<Value = Turn> {
    let step = prop_oneof![1 => -3_isize..0, 3 => Just(1), 1 => 2_isize..4];
    let axis = (0_usize..9, 0_usize..9, step, prop::bool::weighted(0.15));
    prop_oneof![
        5 => vec(axis, 3).prop_map(Turn::Slice),
        2 => any::<usize>().prop_map(Turn::Permute),
        1 => any::<(usize, usize)>().prop_map(|(axis, index)| Turn::Index(axis, index)),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u8>().prop_map(Pick)
}
