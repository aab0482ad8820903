//! Memory that one process exports to another process or to itself. Each case holds on the simulator and on a GPU. If the error
//! code of a refusal is not documented, the case only requires an error.

mod blocks;
mod child;
mod fixture;
mod handles;
mod killed;
mod plain;
mod pools;
mod sockets;
