//! [`Block::send`](crate::Block::send) and [`ImportedBlock::receive`]: an exported block in one call over a Unix socket.
//!
//! A message is a header and a table. The header has a mark, the number of handles, and the position of the block in them; the table has
//! the size of each handle. All numbers have 8 bytes, little-endian. The descriptors are sent with the table, up to [`DESCRIPTORS_MAX`]
//! with each part of it, because the system limits their number per message. The receiver reads exactly the bytes of each part, so the next
//! message stays in the socket.
//!
//! The receiver does not trust its peer's numbers: it allocates as descriptors arrive, and the sizes are checked by [`ImportedBlock::new`]
//! and by the driver.

use super::{ExportedBlock, ExportedHandle, ImportedBlock};
use crate::error::PoolError;
use core::mem::MaybeUninit;
use gpumem_device::Device;
use gpumem_sys::text::{Shown, debug_is_display};
use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Sending or receiving a block failed. After an error other than [`SocketError::Pool`], the position in the socket is unknown: close
/// it.
#[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The other end was closed, and no message is left.
    #[error("the other end of the socket is closed: its process has ended or dropped it; connect again")]
    Closed,
    /// The other end was closed in the middle of a message.
    #[error(
        "the message ends after {received_bytes} of {expected_bytes} bytes, because the other end of the socket was closed; \
         let the sender finish `Block::send`, and send the block again"
    )]
    Truncated {
        /// The bytes of the part that arrived.
        received_bytes: usize,
        /// The size of the part.
        expected_bytes: usize,
    },
    /// The bytes are not a block sent by this version's `Block::send`.
    #[error(
        "the bytes {0:02x?} do not begin a block: another program or another version has sent them; use the socket for \
         blocks only, with one version of gpumem at both ends"
    )]
    NotABlock([u8; 8]),
    /// The block has more handles than a message may have.
    #[error(
        "a block of {count} handles exceeds the maximum of {maximum}; use a pool of a profile with larger handles"
    )]
    TooManyHandles {
        /// The number of handles.
        count: u64,
        /// The largest number.
        maximum: u64,
    },
    /// Descriptors are missing, or there are too many.
    #[error(
        "{received} descriptors arrived with a part of {expected} handles; if there are too few, raise the receiver's limit of \
         open files (ulimit -n)"
    )]
    Descriptors {
        /// The number of descriptors that arrived.
        received: usize,
        /// The number of handles in the part.
        expected: usize,
    },
    /// A system call failed, for example because the socket does not block or has a timeout.
    #[error("the socket failed ({}); check that it blocks and has no timeout", Shown::sentence_of(.0))]
    Io(#[from] std::io::Error),
    /// The export or the import failed.
    #[error("{0}")]
    Pool(#[from] PoolError),
}

impl SocketError {
    /// True if memory ran out; see [`PoolError::is_out_of_memory`].
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Io(error) => error.kind() == std::io::ErrorKind::OutOfMemory,
            _ => false,
        }
    }
}

debug_is_display!(SocketError);

impl ImportedBlock {
    /// Receives a block that another process sends with [`Block::send`](crate::Block::send), and maps it ([`ImportedBlock::new`]). Waits for the
    /// message. The socket must block.
    ///
    /// The sender must be trusted like any code that writes the block's memory, but its message need not be: an invalid message is an
    /// error.
    ///
    /// # Errors
    ///
    /// - [`SocketError::Closed`] if the other end was closed before a message, [`SocketError::Truncated`] if in the middle.
    /// - [`SocketError::NotABlock`], [`SocketError::TooManyHandles`] or [`SocketError::Descriptors`] if the message is not a block, or if
    ///   this process cannot open more files.
    /// - [`SocketError::Pool`] with the errors of [`ImportedBlock::new`], such as [`PoolError::BadArgument`], and
    ///   [`DeviceError::Driver`](crate::DeviceError::Driver) if a descriptor is not memory of a device.
    /// - [`SocketError::Io`] if a system call fails.
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn receive(device: &Device, socket: &UnixStream) -> Result<Self, SocketError> {
        Ok(Self::new(device, ExportedBlock::receive(socket)?)?)
    }
}

impl ExportedBlock {
    /// Sends the exported block over a socket; see [`Block::send`](crate::Block::send). The descriptors stay open here until this value is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`SocketError::Closed`], [`SocketError::TooManyHandles`] and [`SocketError::Io`]; see [`Block::send`](crate::Block::send).
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn send(&self, socket: &UnixStream) -> Result<(), SocketError> {
        let count = check_count(self.handles.len() as u64)?;
        let header =
            [u64::from_le_bytes(MARK), count, self.offset_bytes, self.size_bytes].map(u64::to_le_bytes);
        send_all(socket, header.as_flattened(), &[])?;
        for part in self.handles.chunks(DESCRIPTORS_MAX) {
            let sizes: Vec<u8> = part.iter().flat_map(|handle| handle.size_bytes.to_le_bytes()).collect();
            let descriptors: Vec<_> = part.iter().map(|handle| handle.descriptor.as_fd()).collect();
            send_all(socket, &sizes, &descriptors)?;
        }
        Ok(())
    }

    /// Receives an exported block without mapping it; see [`ImportedBlock::receive`].
    ///
    /// # Errors
    ///
    /// [`SocketError::Closed`], [`SocketError::Truncated`], [`SocketError::NotABlock`], [`SocketError::TooManyHandles`],
    /// [`SocketError::Descriptors`] and [`SocketError::Io`]; see [`ImportedBlock::receive`].
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn receive(socket: &UnixStream) -> Result<Self, SocketError> {
        let mut header = [[0; 8]; 4];
        receive_all(socket, header.as_flattened_mut(), 0)?;
        let [mark, count, offset_bytes, size_bytes] = header;
        if mark != MARK {
            return Err(SocketError::NotABlock(mark));
        }
        let [count, offset_bytes, size_bytes] = [count, offset_bytes, size_bytes].map(u64::from_le_bytes);
        let mut missing = check_count(count)? as usize;
        let mut handles = Vec::new();
        while missing > 0 {
            let mut sizes = [[0; 8]; DESCRIPTORS_MAX];
            let sizes = &mut sizes[..missing.min(DESCRIPTORS_MAX)];
            let (count, expected_bytes) = (sizes.len(), size_of_val(sizes));
            let received = receive_all(socket, sizes.as_flattened_mut(), count);
            let descriptors = received.map_err(|error| match error {
                SocketError::Closed => SocketError::Truncated { received_bytes: 0, expected_bytes },
                error => error,
            })?;
            missing -= count;
            for (descriptor, size_bytes) in descriptors.into_iter().zip(sizes) {
                handles.push(ExportedHandle::new(descriptor, u64::from_le_bytes(*size_bytes)));
            }
        }
        Ok(Self::new(handles, offset_bytes, size_bytes))
    }
}

fn check_count(count: u64) -> Result<u64, SocketError> {
    match count {
        0..=HANDLES_MAX => Ok(count),
        _ => Err(SocketError::TooManyHandles { count, maximum: HANDLES_MAX }),
    }
}

fn send_all(
    socket: &UnixStream,
    mut bytes: &[u8],
    mut descriptors: &[BorrowedFd<'_>],
) -> Result<(), SocketError> {
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // Without the flag, a closed socket would end the process by a signal.
        let sent =
            retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL));
        let sent = sent.map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => SocketError::Closed,
            error => SocketError::Io(error.into()),
        })?;
        (bytes, descriptors) = (&bytes[sent..], &[]);
    }
    Ok(())
}

fn receive_all(socket: &UnixStream, bytes: &mut [u8], expected: usize) -> Result<Vec<OwnedFd>, SocketError> {
    let (mut received_bytes, mut descriptors) = (0, Vec::new());
    while received_bytes < bytes.len() {
        // The system closes descriptors that do not fit. One more than expected suffices to detect the error.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let message = retry_on_intr(|| {
            let rest = &mut [IoSliceMut::new(&mut bytes[received_bytes..])];
            recvmsg(socket, rest, &mut beside, RecvFlags::CMSG_CLOEXEC)
        });
        let message = match message {
            Err(Errno::CONNRESET) => None,
            message => Some(message.map_err(std::io::Error::from)?),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(arrived) = message {
                descriptors.extend(arrived);
            }
        }
        let Some(message) = message.filter(|message| message.bytes > 0) else {
            return Err(match received_bytes {
                0 => SocketError::Closed,
                _ => SocketError::Truncated { received_bytes, expected_bytes: bytes.len() },
            });
        };
        received_bytes += message.bytes;
    }
    if descriptors.len() != expected {
        return Err(SocketError::Descriptors { received: descriptors.len(), expected });
    }
    // The driver mistakes the descriptor 0 for a null pointer.
    let nonzero = |descriptor: OwnedFd| match descriptor.as_raw_fd() {
        0 => descriptor.try_clone(),
        _ => Ok(descriptor),
    };
    Ok(descriptors.into_iter().map(nonzero).collect::<Result<_, _>>()?)
}

/// The first bytes of a message. The last of them is the version of the format.
const MARK: [u8; 8] = *b"gpumem\x00\x01";
/// More handles than memory of any device has.
const HANDLES_MAX: u64 = 1 << 20;
/// The number of descriptors in a part. The system allows 253.
const DESCRIPTORS_MAX: usize = 128;
