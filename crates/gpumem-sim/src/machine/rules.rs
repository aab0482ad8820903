//! Applies the rules to each call.

use crate::config::rules::Effect;
use crate::machine::Machine;
use crate::machine::stream::execute::Fault;
use crate::report::finding::FaultKind;
use gpumem_sys::types::CUresult;

impl Machine {
    /// Applies the rules to a call. Returns the code for an immediate return, if a rule makes the call fail.
    pub(crate) fn offer(&mut self, call: &str) -> Option<CUresult> {
        if self.rules.rules.is_empty() {
            return None;
        }
        let mut verdict = None;
        for effect in self.rules.effects(call) {
            match effect {
                Effect::Fail(code) => verdict = verdict.or(Some(code)),
                Effect::TakeMemory { device, size_bytes } => _ = self.take_memory(device, size_bytes),
                Effect::LoseDevice { device, code } => self.lose_device(device, code),
                Effect::Delay { stream_number, step_count } => {
                    self.schedule.delay(stream_number, step_count);
                }
            }
        }
        verdict
    }

    fn lose_device(&mut self, device: u32, code: CUresult) {
        for context in self.contexts.values_mut().filter(|context| context.device == device as usize) {
            context.error = context.error.or(Some(code));
        }
        // The loss ends the work of the device, and the next call reports it. Without that, memory of another device that the work used
        // could never be freed.
        self.host_learns_device(device as usize);
        let text = format!("a rule made device {device} fail");
        self.note_fault(Fault { kind: FaultKind::DeviceLost, code, text, allocation: None, place: None });
    }
}
