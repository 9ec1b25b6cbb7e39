// Package model is the reference that the pool's tests are held against: a driver
// and streams in memory, which know what lies behind every address.
//
// A [Machine] implements what package stitch needs of a driver, its budget and its
// fences. Work on streams is a number that goes up when some is queued
// ([Machine.Queue]) and one that follows when it is done ([Machine.Finish]).
// [Machine.Claim] and [Machine.Release] say what a test was given and has given
// back; Claim fails when physical memory is live already under any address, or when
// a stream may still touch it that the new owner does not wait for.
//
// A test with threads calls Claim after the allocation and Release before the free;
// both lock. Nothing here is fast, and nothing but tests uses it.
package model
