//! Instructions on matrices that the lanes of a warp hold together.

use crate::check::Touch;
use crate::memory::{get, set};
use crate::number::matrix::{Element, Fragment, Role};
use crate::number::{LANES, Lanes};
use crate::program::{Access, Lines, Matrix, Slot};
use crate::run::Run;
use crate::run::access::{element, set_element};
use crate::run::group::Waiting;
use crate::run::warp::{Executing, Failed, Flow, Warp, bits, lanes_of};

/// 8 rows of 8 halves, of which each lane has two.
const ROWS: Fragment =
    Fragment { element: Element::F16, role: Role::C, rows: SIDE, columns: SIDE, registers: 1 };
const SIDE: usize = 8;

impl Warp {
    /// Does an instruction once all lanes of the warp that have not ended are at it.
    pub(crate) fn matrix(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        index: usize,
        matrix: &Matrix,
    ) -> Result<Flow, Failed> {
        if on.lanes != self.alive() {
            self.split_guarded(index, on.lanes);
            self.groups[index].waiting = Waiting::Lanes;
            return Ok(Flow::Changed);
        }
        self.matrix_of_all(run, on, matrix)?;
        match matrix {
            Matrix::StoreRows { .. } | Matrix::Store { .. } => Ok(self.changes(run, index)),
            _ => Ok(Flow::Next),
        }
    }

    fn matrix_of_all(&mut self, run: &mut Run<'_>, on: Executing<'_>, matrix: &Matrix) -> Result<(), Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        match matrix {
            Matrix::LoadRows { to, from, is_transposed } => {
                let mut values = vec![[0; LANES]; to.len()];
                let addresses = *self.input(run, base, from.at);
                for lane in bits(active).take_while(|lane| *lane < SIDE * to.len()) {
                    let address = addresses[lane].wrapping_add_signed(from.offset_bytes);
                    let thread = self.thread(lane, shared, local);
                    let cells = run.cells(from, address, &thread, false);
                    let cells = cells.map_err(|mistake| (mistake, lane as u32))?;
                    run.note(from, address, &thread, || Touch::Read);
                    let (number, row) = (lane / SIDE, lane % SIDE);
                    for column in 0..SIDE {
                        let (holder, index) = holder(row, column, *is_transposed);
                        ROWS.put(&mut values[number][holder], index, element(cells, column, 2));
                    }
                }
                to.iter().zip(&values).for_each(|(to, value)| self.write(base + to, value, active));
            }
            Matrix::StoreRows { values, to, is_transposed } => {
                let addresses = *self.input(run, base, to.at);
                for lane in bits(active).take_while(|lane| *lane < SIDE * values.len()) {
                    let address = addresses[lane].wrapping_add_signed(to.offset_bytes);
                    let thread = self.thread(lane, shared, local);
                    let cells = run.cells(to, address, &thread, true);
                    let cells = cells.map_err(|mistake| (mistake, lane as u32))?;
                    run.note(to, address, &thread, || Touch::Write { is_same: false });
                    let (number, row) = (lane / SIDE, lane % SIDE);
                    let registers = self.input(run, base, values[number]);
                    for column in 0..SIDE {
                        let (holder, index) = holder(row, column, *is_transposed);
                        set_element(cells, column, 2, ROWS.part(registers[holder], index));
                    }
                }
            }
            Matrix::Transpose { to, input } => {
                let input = *self.input(run, base, *input);
                let mut value = [0; LANES];
                for (row, column) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |column| (row, column))) {
                    let (from, index) = holder(row, column, false);
                    let (to, place) = holder(row, column, true);
                    ROWS.put(&mut value[to], place, ROWS.part(input[from], index));
                }
                self.write(base + to, &value, active);
            }
            Matrix::Load { to, from, fragment, lines } => {
                let mut values = vec![[0; LANES]; to.len()];
                for (lane, index, address) in self.elements(run, base, active, (from, fragment, lines)) {
                    let thread = self.thread(lane, shared, local);
                    let cells = run.cells(from, address, &thread, false);
                    let cells = cells.map_err(|mistake| (mistake, lane as u32))?;
                    run.note(from, address, &thread, || Touch::Read);
                    let register = &mut values[index / fragment.element.per_register()][lane];
                    fragment.put(register, index, get(cells));
                }
                to.iter().zip(&values).for_each(|(to, value)| self.write(base + to, value, active));
            }
            Matrix::Store { values, to, fragment, lines } => {
                for (lane, index, address) in self.elements(run, base, active, (to, fragment, lines)) {
                    let thread = self.thread(lane, shared, local);
                    let cells = run.cells(to, address, &thread, true);
                    let cells = cells.map_err(|mistake| (mistake, lane as u32))?;
                    run.note(to, address, &thread, || Touch::Write { is_same: false });
                    let register = values[index / fragment.element.per_register()];
                    set(cells, fragment.part(self.input(run, base, register)[lane], index));
                }
            }
            Matrix::Multiply { product, to, a, b, c } => {
                let of = |slots: &[Slot]| -> Vec<&Lanes> {
                    slots.iter().map(|slot| self.input(run, base, *slot)).collect()
                };
                let values = product.of(&of(a), &of(b), &of(c));
                to.iter().zip(&values).for_each(|(to, value)| self.write(base + to, value, active));
            }
        }
        Ok(())
    }

    fn input<'a>(&'a self, run: &'a Run<'_>, base: u32, slot: Slot) -> &'a Lanes {
        lanes_of(&self.registers, &run.constants, &self.specials, base, slot)
    }

    /// Lane, index in the lane, and address of all elements of a matrix in memory.
    fn elements(
        &self,
        run: &Run<'_>,
        base: u32,
        active: u32,
        (access, fragment, lines): (&Access, &Fragment, &Lines),
    ) -> Vec<(usize, usize, u64)> {
        let addresses = self.input(run, base, access.at);
        let strides = self.input(run, base, lines.stride);
        let of_lane = |lane: usize| {
            (0..fragment.per_lane()).map(move |index| {
                let (row, column) = fragment.place(lane, index);
                let (line, inside) = if lines.are_columns { (column, row) } else { (row, column) };
                let number = u64::from(strides[lane] as u32) * line as u64 + inside as u64;
                let start = addresses[lane].wrapping_add_signed(access.offset_bytes);
                (lane, index, start.wrapping_add(number * u64::from(access.bytes)))
            })
        };
        bits(active).flat_map(of_lane).collect()
    }
}

/// The lane that holds an element of [`ROWS`], and its index there.
fn holder(row: usize, column: usize, is_transposed: bool) -> (usize, usize) {
    let (row, column) = if is_transposed { (column, row) } else { (row, column) };
    (row * SIDE / 2 + column / 2, column % 2)
}
