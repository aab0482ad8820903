//! Programs on a machine that only counts: which bytes move, beside a plan that knows the future.

use super::{Repetition, SpillPlan, SpillUse};
use std::collections::{HashMap, HashSet};

/// Uses of one operation: an array and whether it is written.
type Operation = Vec<(u64, bool)>;

#[derive(Default)]
struct Machine {
    plan: SpillPlan,
    capacity: u64,
    sizes: HashMap<u64, u64>,
    resident: HashSet<u64>,
    saved: HashSet<u64>,
    up_bytes: u64,
    down_bytes: u64,
    /// Of them, those that an operation has waited for.
    late_down_bytes: u64,
    early_count: u64,
}

impl Machine {
    fn new(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    fn resident_bytes(&self) -> u64 {
        self.resident.iter().map(|array| self.sizes[array]).sum()
    }

    fn make(&mut self, array: u64, size: u64, protected: &[u64]) {
        assert!(self.make_room(size, 0, protected));
        self.sizes.insert(array, size);
        self.resident.insert(array);
        self.plan.add(array, size);
    }

    fn remove(&mut self, array: u64) {
        self.plan.remove(array);
        self.sizes.remove(&array);
        self.resident.remove(&array);
        self.saved.remove(&array);
    }

    fn make_room(&mut self, size: u64, nearest: u64, protected: &[u64]) -> bool {
        let excess = (self.resident_bytes() + size).saturating_sub(self.capacity);
        if excess == 0 {
            return true;
        }
        let cost = |array| {
            let is_saved = self.saved.contains(&array);
            let may_leave = !protected.contains(&array) && (is_saved || nearest == 0);
            // No two are neighbours.
            may_leave.then_some((array << 40, if is_saved { 1.0 } else { 3.0 }))
        };
        for array in self.plan.victims(excess, nearest, cost) {
            self.late_down_bytes += self.save(array);
            self.resident.remove(&array);
            self.plan.set_resident(array, false, false);
        }
        self.resident_bytes() + size <= self.capacity
    }

    fn save(&mut self, array: u64) -> u64 {
        let size = if self.saved.insert(array) { self.sizes[&array] } else { 0 };
        self.down_bytes += size;
        size
    }

    fn bring_back(&mut self, array: u64, nearest: u64, protected: &[u64]) -> bool {
        if self.resident.contains(&array) {
            return true;
        }
        let size = self.sizes[&array];
        if !self.make_room(size, nearest, protected) {
            return false;
        }
        self.up_bytes += size;
        self.resident.insert(array);
        self.plan.set_resident(array, true, nearest > 0);
        true
    }

    fn run(&mut self, operation: &Operation) {
        let arrays: Vec<u64> = operation.iter().map(|(array, _)| *array).collect();
        for array in &arrays {
            assert!(self.bring_back(*array, 0, &arrays), "an operation fits");
        }
        let uses: Vec<_> = operation
            .iter()
            .map(|(array, is_write)| SpillUse { array: *array, is_write: *is_write })
            .collect();
        for (array, _) in operation.iter().filter(|(_, is_write)| *is_write) {
            self.saved.remove(array);
        }
        for array in self.plan.note(&uses) {
            self.save(array);
        }
        for array in self.plan.returning() {
            let nearest = 8 * self.plan.expected_in(array).unwrap_or(0).max(1);
            self.early_count += 1;
            if !self.bring_back(array, nearest, &[array]) {
                break;
            }
        }
    }

    /// Runs one round of a program, and returns the bytes up and down.
    fn round(&mut self, operations: &[Operation]) -> [u64; 2] {
        let before = [self.up_bytes, self.down_bytes];
        operations.iter().for_each(|operation| self.run(operation));
        [self.up_bytes - before[0], self.down_bytes - before[1]]
    }
}

/// 36 weights in turn, of which 24 fit.
#[test]
fn a_cycle_moves_little_more_than_what_is_missing() {
    let mut machine = Machine::new(24 * MIB_128);
    (1..=36).for_each(|array| machine.make(array, MIB_128, &[]));
    let operations: Vec<Operation> = (1..=36).map(|array| vec![(array, false)]).collect();
    machine.round(&operations);
    for round in 1..5 {
        let [up, down] = machine.round(&operations);
        // The least that any plan can move is 12 arrays, and the window holds two.
        assert!(up <= if round == 1 { 16 } else { 14 } * MIB_128, "round {round}: {} arrays", up / MIB_128);
        assert!(round < 3 || down == 0, "round {round}: {} arrays down", down / MIB_128);
    }
    assert!(machine.early_count > 30);
}

/// A training step: activations are new arrays in each step, are used backwards, and are dropped.
#[test]
fn activations_of_each_step_are_expected_like_those_of_the_last() {
    let (layers, size) = (16, MIB_128);
    // Weights take 16 of 24, activations 16 more.
    let mut machine = Machine::new(24 * size);
    (0..layers).for_each(|layer| machine.make(layer, size, &[]));
    let mut moved = Vec::new();
    for step in 1..8 {
        let before = (machine.up_bytes, machine.late_down_bytes);
        let activation = |layer: u64| 1000 * step + layer;
        for layer in 0..layers {
            machine.make(activation(layer), size, &[]);
            let mut operation = vec![(layer, false), (activation(layer), true)];
            if layer > 0 {
                operation.push((activation(layer - 1), false));
            }
            machine.run(&operation);
        }
        for layer in (0..layers).rev() {
            machine.run(&vec![(layer, true), (activation(layer), false)]);
            machine.remove(activation(layer));
        }
        let (up, late) = (machine.up_bytes - before.0, machine.late_down_bytes - before.1);
        moved.push((up / size, late / size));
    }
    // Of 32 arrays 24 fit: at least eight return in each step.
    assert!(moved[2..].iter().all(|(up, _)| (8..=11).contains(up)), "{moved:?}");
    // What left in the step before is copied down behind its last use, ahead of the request that needs the memory.
    assert!(moved[3..].iter().all(|(_, late)| *late <= 1), "{moved:?}");
    assert!(machine.early_count > 8, "{} of {moved:?}", machine.early_count);
}

/// Uses without a pattern: nothing returns early in vain for long, and no more moves than in the order of least recent use.
#[test]
fn a_program_without_a_pattern_moves_no_more_than_least_recently_used() {
    let mut machine = Machine::new(16 * MIB_128);
    (1..=64).for_each(|array| machine.make(array, MIB_128, &[]));
    let (mut lru, mut lru_up): (Vec<u64>, u64) = ((49..=64).collect(), 0);
    let mut state = 1_u64;
    let before = machine.up_bytes;
    for _ in 0..4000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1_u64 << 53) as f64;
        // Half of the uses are of a tenth of the arrays.
        let array = 1 + (uniform * uniform * uniform * 64.0) as u64;
        machine.run(&vec![(array, false)]);
        match lru.iter().position(|other| *other == array) {
            Some(at) => drop(lru.remove(at)),
            None => {
                lru.remove(0);
                lru_up += MIB_128;
            }
        }
        lru.push(array);
    }
    let up = machine.up_bytes - before;
    assert!(up as f64 <= 1.1 * lru_up as f64, "{} arrays, and {} by age", up / MIB_128, lru_up / MIB_128);
}

/// What a program needs changes: expectations that were wrong are given up.
#[test]
fn a_second_phase_is_learnt() {
    let mut machine = Machine::new(24 * MIB_128);
    (1..=60).for_each(|array| machine.make(array, MIB_128, &[]));
    let first: Vec<Operation> = (1..=30).map(|array| vec![(array, false)]).collect();
    let second: Vec<Operation> = (31..=60).rev().map(|array| vec![(array, false)]).collect();
    for _ in 0..4 {
        machine.round(&first);
    }
    machine.round(&second);
    for round in 1..4 {
        let [up, _] = machine.round(&second);
        assert!(round == 1 || up <= 8 * MIB_128, "round {round}: {} arrays", up / MIB_128);
    }
}

/// Small arrays make way for a large one where they are neighbours, unless they are needed much sooner.
#[test]
fn neighbours_move_out_together() {
    let mut plan = SpillPlan::default();
    (0..8).for_each(|array| plan.add(array, MIB_128));
    for array in 0..8 {
        plan.note(&[SpillUse { array, is_write: false }]);
    }
    // Used long ago: 0, 1, 2, in this order. Neighbours in memory: 0 and 2; 1 and 3.
    let places = [0, 10, 1, 11, 20, 30, 40, 50];
    let place = |array: u64| Some((places[array as usize] * MIB_128, 1.0));
    assert_eq!(plan.victims(MIB_128, 0, place), [0]);
    assert_eq!(plan.victims(2 * MIB_128, 0, place), [0, 2]);
    assert_eq!(plan.victims(3 * MIB_128, 0, place), [0, 1, 2]);
    // 6 and 7 are neighbours, and needed soon.
    let places = [0, 10, 20, 30, 40, 50, 60, 61];
    assert_eq!(plan.victims(2 * MIB_128, 0, |array| Some((places[array as usize] * MIB_128, 1.0))), [0, 1]);
}

/// The needs of a repetition are those of the loop, at once: idle arrays do not count, and temporary ones do.
#[test]
fn a_repetition_has_the_needs_of_the_loop() {
    // 36 arrays in turn, of which 24 fit, and four that nothing uses after the first round.
    let mut machine = Machine::new(24 * MIB_128);
    (1..=40).for_each(|array| machine.make(array, MIB_128, &[]));
    machine.round(&(1..=40).map(|array| vec![(array, false)]).collect::<Vec<_>>());
    assert_eq!(machine.plan.repetition(), None);
    let reads: Vec<Operation> = (1..=36).map(|array| vec![(array, false)]).collect();
    for _ in 0..3 {
        machine.round(&reads);
    }
    let read_only = Repetition {
        needed_bytes: 36 * MIB_128,
        room_bytes: 24 * MIB_128,
        least_up_bytes: 12 * MIB_128,
        least_down_bytes: 0,
    };
    assert_eq!(machine.plan.repetition(), Some(read_only));
    // Where all but ten are written, ten leave for free.
    let writes: Vec<Operation> = (1..=36).map(|array| vec![(array, array > 10)]).collect();
    for _ in 0..3 {
        machine.round(&writes);
    }
    assert_eq!(machine.plan.repetition(), Some(Repetition { least_down_bytes: 2 * MIB_128, ..read_only }));
}

/// A program that leaves one loop for another does so in the same way each time.
#[test]
fn phases_that_alternate_are_known() {
    let mut machine = Machine::new(24 * MIB_128);
    (1..=48).for_each(|array| machine.make(array, MIB_128, &[]));
    let phases =
        [0, 24].map(|first| (first + 1..=first + 24).map(|array| vec![(array, false)]).collect::<Vec<_>>());
    let mut run = || {
        let of =
            |machine: &mut Machine, phase: &[Operation]| (0..5).map(|_| machine.round(phase)[0]).sum::<u64>();
        phases.iter().map(|phase| of(&mut machine, phase)).sum::<u64>()
    };
    let moved: Vec<u64> = (0..4).map(|_| run()).collect();
    // Each phase fits, and takes the place of the other.
    assert!(moved[3] <= 50 * MIB_128, "{moved:?}");
}

/// The order behind a mark is known from the first operation on, even if that says nothing.
#[test]
fn marked_iterations_are_known_from_their_start() {
    let returned = |is_marked: bool| {
        let mut machine = Machine::new(24 * MIB_128);
        (1..=36).for_each(|array| machine.make(array, MIB_128, &[]));
        let mut numbers = 7_u64;
        let mut early_count = 0;
        for round in 0..4 {
            // Between iterations, the program does something else each time.
            for _ in 0..5 {
                numbers = numbers.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                machine.run(&vec![(1 + (numbers >> 33) % 36, false)]);
            }
            if is_marked {
                machine.plan.begin_iteration();
            }
            let before = machine.early_count;
            (1..=6).for_each(|array| machine.run(&vec![(array, false)]));
            if round == 3 {
                early_count = machine.early_count - before;
            }
            (7..=36).for_each(|array| machine.run(&vec![(array, false)]));
        }
        early_count
    };
    assert!(returned(true) > returned(false), "{} and {}", returned(true), returned(false));
}

/// What is removed and what has never been used leaves no trace in the sums.
#[test]
fn sums_end_at_zero() {
    let mut machine = Machine::new(4 * MIB_128);
    (1..=8).for_each(|array| machine.make(array, MIB_128, &[]));
    let operations: Vec<Operation> = (1..=8).map(|array| vec![(array, array % 2 == 0)]).collect();
    for _ in 0..5 {
        machine.round(&operations);
    }
    (1..=8).for_each(|array| machine.remove(array));
    let plan = &machine.plan;
    assert_eq!((plan.resident_bytes, plan.away_bytes, plan.early_bytes), (0, 0, 0));
    assert!(plan.due.is_empty() && plan.arrays.is_empty());
}

const MIB_128: u64 = 128 << 20;
