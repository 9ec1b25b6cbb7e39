// Package queue keeps the operations that are queued on streams and not finished.
//
// Operations are added in the order of their sequence numbers, over all streams, and
// finish in that order on each stream. A stream that is quiet for long may leave its last
// operation unreported while others run millions, so nothing here takes time or memory by
// what has been finished since the oldest: what is finished is dropped, at a constant cost
// an operation, wherever it stands. Positions are a tensor's part of it.
package queue
