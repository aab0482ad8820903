//! Contexts: creation, the stack of each thread, and the streams that calls refer to.

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE};
use crate::base::handle::Handle;
use crate::base::thread::{Life, ThreadKey};
use crate::device::context::Context;
use crate::device::settings::Settings;
use crate::machine::Machine;
use crate::stream::{Role, Stream};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    pub(crate) fn context_create(&mut self, device: usize, is_primary: bool) -> Answer<Handle> {
        let context = Context {
            device,
            is_primary,
            // Replaced below: the stream needs the handle of the context, and the context that of the stream.
            legacy: Handle::NONE,
            of_thread: BTreeMap::new(),
            error: None,
            peers: BTreeSet::new(),
            settings: Settings::default(),
        };
        let handle = self.contexts.insert(context)?;
        let legacy = self.streams.insert(Stream::new(handle, device, 0, 0, Role::Legacy));
        let legacy = legacy.inspect_err(|_| drop(self.contexts.remove(handle)))?;
        if let Some(context) = self.contexts.get_mut(handle) {
            context.legacy = legacy;
        }
        Ok(handle)
    }

    /// Destroys a context with everything that it owns. Its work is complete.
    pub(crate) fn context_destroy(&mut self, handle: Handle) {
        self.host_learns_context(handle);
        let Some(context) = self.contexts.remove(handle) else { return };
        for stream in self.streams.handles() {
            if self.streams.get(stream).is_some_and(|stream| stream.context == handle)
                && let Some(gone) = self.streams.remove(stream)
            {
                self.clock_gone(&gone);
                self.gone_streams.insert(stream);
            }
        }
        self.captures_forget();
        self.events.retain(|event| event.context != handle);
        self.modules_forget(handle);
        self.memory_forget(handle, context.is_primary.then_some(context.device));
        for stack in self.current.values_mut() {
            stack.retain(|&current| current != handle);
        }
    }

    pub(crate) fn primary_retain(&mut self, device: usize) -> Answer<Handle> {
        let primary = self.devices.get(device).ok_or(INVALID_DEVICE)?.primary;
        let handle = match primary {
            Some(handle) => handle,
            None => self.context_create(device, true)?,
        };
        let device = &mut self.devices[device];
        device.primary = Some(handle);
        device.primary_count += 1;
        Ok(handle)
    }

    /// Releases a reference. Returns the handle if it was the last one; the caller destroys the context after its work.
    pub(crate) fn primary_release(&mut self, device: usize) -> Answer<Option<Handle>> {
        let device = self.devices.get_mut(device).ok_or(INVALID_DEVICE)?;
        let handle = device.primary.ok_or(INVALID_CONTEXT)?;
        device.primary_count -= 1;
        if device.primary_count > 0 {
            return Ok(None);
        }
        device.primary = None;
        Ok(Some(handle))
    }

    /// The current context of a thread.
    pub(crate) fn current_handle(&self, thread: ThreadKey) -> Option<Handle> {
        self.current.get(&thread)?.last().copied()
    }

    /// Replaces or removes the current context.
    pub(crate) fn set_current(&mut self, thread: ThreadKey, context: Option<Handle>) -> Answer<()> {
        if context.is_some_and(|handle| self.contexts.get(handle).is_none()) {
            return Err(INVALID_CONTEXT);
        }
        let stack = self.current.entry(thread).or_default();
        stack.pop();
        stack.extend(context);
        if stack.is_empty() {
            self.current.remove(&thread);
        }
        Ok(())
    }

    pub(crate) fn push_current(&mut self, thread: ThreadKey, context: Handle) -> Answer<()> {
        self.contexts.get(context).ok_or(INVALID_CONTEXT)?;
        self.current.entry(thread).or_default().push(context);
        Ok(())
    }

    pub(crate) fn pop_current(&mut self, thread: ThreadKey) -> Answer<Handle> {
        let stack = self.current.get_mut(&thread).ok_or(INVALID_CONTEXT)?;
        let popped = stack.pop().ok_or(INVALID_CONTEXT)?;
        if stack.is_empty() {
            self.current.remove(&thread);
        }
        Ok(popped)
    }

    /// The current context, if it has not failed.
    pub(crate) fn context(&self, thread: ThreadKey) -> Answer<Handle> {
        let handle = self.current_handle(thread).ok_or(INVALID_CONTEXT)?;
        self.check_context(handle)?;
        Ok(handle)
    }

    pub(crate) fn context_device(&self, context: Handle) -> Answer<usize> {
        Ok(self.contexts.get(context).ok_or(INVALID_CONTEXT)?.device)
    }

    /// The code that a failed context returns to every call.
    pub(crate) fn check_context(&self, handle: Handle) -> Answer<()> {
        self.contexts.get(handle).ok_or(INVALID_CONTEXT)?.error.map_or(Ok(()), Err)
    }

    /// The stream that a caller refers to, possibly by a pseudo handle.
    pub(crate) fn stream(&mut self, thread: ThreadKey, handle: Handle) -> Answer<Handle> {
        let current = self.context(thread)?;
        let stream = match handle.to_bits() {
            0 | 1 => self.contexts.get(current).ok_or(INVALID_CONTEXT)?.legacy,
            2 => self.stream_of_thread(current, thread)?,
            _ => handle,
        };
        let Some(found) = self.streams.get(stream).filter(|stream| !stream.is_closing) else {
            self.note_if_gone(stream);
            return Err(INVALID_HANDLE);
        };
        self.check_context(found.context)?;
        Ok(stream)
    }

    fn stream_of_thread(&mut self, handle: Handle, thread: ThreadKey) -> Answer<Handle> {
        let context = self.contexts.get_mut(handle).ok_or(INVALID_CONTEXT)?;
        if let Some(&(stream, _)) = context.of_thread.get(&thread) {
            return Ok(stream);
        }
        let device = context.device;
        self.close_streams_of_ended_threads(handle);
        let stream = self.streams.insert(Stream::new(handle, device, 0, 0, Role::OfThread))?;
        if let Some(context) = self.contexts.get_mut(handle) {
            context.of_thread.insert(thread, (stream, Life::of_caller()));
        }
        Ok(stream)
    }

    /// Closes the default streams of ended threads. A stream that captures stays.
    fn close_streams_of_ended_threads(&mut self, context: Handle) {
        let of_thread = self.contexts.get(context).into_iter().flat_map(|context| &context.of_thread);
        let ended = of_thread.filter(|(_, (stream, life))| life.is_over() && !self.is_capturing(*stream));
        let ended: Vec<(ThreadKey, Handle)> = ended.map(|(thread, (stream, _))| (*thread, *stream)).collect();
        for (thread, stream) in ended {
            if let Some(context) = self.contexts.get_mut(context) {
                context.of_thread.remove(&thread);
            }
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.is_closing = true;
            }
            self.remove_if_drained(stream);
        }
    }
}
