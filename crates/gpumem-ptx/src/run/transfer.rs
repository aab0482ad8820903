//! Instructions that access memory for each lane: loads, stores, atomics, asynchronous copies.

use crate::check::Touch;
use crate::fault::Mistake;
use crate::memory::{get, set};
use crate::number::LANES;
use crate::program::{Access, Memory, Slot};
use crate::run::Run;
use crate::run::access::{by_window, element, set_element};
use crate::run::warp::{Executing, Failed, Warp, bits, lanes_of};

/// The elements of a load, at most.
const VECTOR_MAX: usize = 8;

impl Warp {
    /// Loads the elements of an access, each to its register if it has one.
    pub(crate) fn load(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        to: &[Option<u32>],
        from: &Access,
    ) -> Result<(), Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        let addresses = *self.lanes(run, base, from.at);
        if from.order.is_strong {
            let address = addresses[active.trailing_zeros() as usize];
            self.polls(run.at, address.wrapping_add_signed(from.offset_bytes));
        }
        if let Some(together) = run.together(from, &addresses, active, shared, false) {
            for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                let offset = index * usize::from(from.bytes);
                together.read(offset, from.bytes, &mut self.registers[(base + to) as usize]);
            }
            return Ok(());
        }
        if let (Memory::Parameters, Slot::Constant(_)) = (from.space, from.at) {
            let address = addresses[0].wrapping_add_signed(from.offset_bytes);
            for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                let value = run.parameter(from, address, index as u8);
                let value = value.map_err(|mistake| (mistake, active.trailing_zeros()))?;
                self.write(base + to, &[value; LANES], active);
            }
            return Ok(());
        }
        for lane in bits(active) {
            let failed = |mistake| (mistake, lane as u32);
            let address = addresses[lane].wrapping_add_signed(from.offset_bytes);
            let parameter = match from.space {
                Memory::Parameters => Some(address),
                Memory::Generic => match by_window(address) {
                    (Memory::Parameters, address) => Some(address),
                    _ => None,
                },
                _ => None,
            };
            if let Some(address) = parameter {
                for (index, to) in to.iter().enumerate().filter_map(|(index, to)| Some((index, (*to)?))) {
                    let value = run.parameter(from, address, index as u8).map_err(failed)?;
                    self.registers[(base + to) as usize][lane] = value;
                }
                continue;
            }
            let thread = self.thread(lane, shared, local);
            let cells = run.cells(from, address, &thread, false).map_err(failed)?;
            run.note(from, address, &thread, || Touch::Read);
            if let [Some(to)] = to {
                self.registers[(base + to) as usize][lane] = get(cells);
                continue;
            }
            let values: [u64; VECTOR_MAX] = core::array::from_fn(|index| match to.get(index) {
                Some(Some(_)) => element(cells, index, from.bytes),
                _ => 0,
            });
            for (to, value) in to.iter().zip(values).filter_map(|(to, value)| Some(((*to)?, value))) {
                self.registers[(base + to) as usize][lane] = value;
            }
        }
        Ok(())
    }

    pub(crate) fn store(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        values: &[Slot],
        to: &Access,
    ) -> Result<(), Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        let addresses = *self.lanes(run, base, to.at);
        if let Some(together) = run.together(to, &addresses, active, shared, true) {
            for (index, value) in values.iter().enumerate() {
                let offset = index * usize::from(to.bytes);
                together.write(offset, to.bytes, self.lanes(run, base, *value));
            }
            return Ok(());
        }
        for lane in bits(active) {
            let address = addresses[lane].wrapping_add_signed(to.offset_bytes);
            let thread = self.thread(lane, shared, local);
            let cells = run.cells(to, address, &thread, true).map_err(|mistake| (mistake, lane as u32))?;
            if run.checker.is_some() {
                let is_same = values.iter().enumerate().all(|(index, value)| {
                    let kept = self.lanes(run, base, *value)[lane] << (64 - 8 * u32::from(to.bytes));
                    kept == element(cells, index, to.bytes) << (64 - 8 * u32::from(to.bytes))
                });
                run.note(to, address, &thread, || Touch::Write { is_same });
            }
            for (index, value) in values.iter().enumerate() {
                let value = lanes_of(&self.registers, &run.constants, &self.specials, base, *value)[lane];
                set_element(cells, index, to.bytes, value);
            }
        }
        Ok(())
    }

    /// Returns true if memory has changed. `functions` are for global and for shared memory.
    pub(crate) fn atomic(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        functions: [fn(u64, u64, u64) -> u64; 2],
        to: Option<u32>,
        at: &Access,
        inputs: [Slot; 2],
    ) -> Result<bool, Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        let [in_global, in_shared] = functions;
        let addresses = *self.lanes(run, base, at.at);
        let [b, c] = inputs.map(|slot| *self.lanes(run, base, slot));
        let mut is_changed = false;
        for lane in bits(active) {
            let address = addresses[lane].wrapping_add_signed(at.offset_bytes);
            let thread = self.thread(lane, shared, local);
            let cells = run.cells(at, address, &thread, true).map_err(|mistake| (mistake, lane as u32))?;
            run.note(at, address, &thread, || Touch::Atomic);
            let old = get(cells);
            let function = if at.is_shared(address) { in_shared } else { in_global };
            set(cells, function(old, b[lane], c[lane]));
            is_changed |= get(cells) != old;
            if let Some(to) = to {
                self.registers[(base + to) as usize][lane] = old;
            }
        }
        if !is_changed && to.is_some() {
            let address = addresses[active.trailing_zeros() as usize];
            self.polls(run.at, address.wrapping_add_signed(at.offset_bytes));
        }
        Ok(is_changed)
    }

    /// Copies from global to shared memory. What the source is too short for becomes zeros.
    pub(crate) fn copy(
        &mut self,
        run: &mut Run<'_>,
        on: Executing<'_>,
        [to, from]: [&Access; 2],
        size_bytes: u32,
        source_bytes: Option<Slot>,
    ) -> Result<(), Failed> {
        let Executing { lanes: active, base, shared, local } = on;
        let [targets, sources] = [to.at, from.at].map(|slot| *self.lanes(run, base, slot));
        let lens = source_bytes.map(|slot| *self.lanes(run, base, slot));
        for lane in bits(active) {
            let failed = |mistake| (mistake, lane as u32);
            let len = lens.map_or(size_bytes, |lens| lens[lane] as u32);
            if len > size_bytes {
                let [source_bytes, size_bytes] = [len, size_bytes].map(u64::from);
                return Err(failed(Mistake::CopySize { source_bytes, size_bytes }));
            }
            let len = len as usize;
            let mut bytes = [0; 16];
            let thread = self.thread(lane, shared, local);
            if len > 0 {
                let source = sources[lane].wrapping_add_signed(from.offset_bytes);
                if source & u64::from(size_bytes - 1) != 0 {
                    let size_bytes = u64::from(size_bytes);
                    let mistake =
                        Mistake::Misaligned { space: "global", address: source, size_bytes, is_write: false };
                    return Err(failed(mistake));
                }
                // Only what is copied is read.
                let from = Access { bytes: 1, count: len as u8, ..*from };
                let cells = run.cells(&from, source, &thread, false).map_err(failed)?;
                run.note(&from, source, &thread, || Touch::Read);
                bytes.iter_mut().zip(&cells[..len]).for_each(|(byte, cell)| *byte = cell.get());
            }
            let target = targets[lane].wrapping_add_signed(to.offset_bytes);
            let cells = run.cells(to, target, &thread, true).map_err(failed)?;
            run.note(to, target, &thread, || Touch::Copy);
            cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(byte));
        }
        Ok(())
    }
}
