package main

import (
	"context"
	"fmt"
)

// Exit statuses. An error is taken for the user's to solve unless it says otherwise.
const (
	statusInternal    = 1
	statusUsage       = 2
	statusInterrupted = 130 // as shells count it: 128 + SIGINT
)

// internalError is a failure that no other input would have avoided.
type internalError struct{ err error }

func (e *internalError) Error() string {
	return "internal error: " + e.err.Error() + ": please report it"
}
func (e *internalError) Unwrap() error { return e.err }

func internalf(format string, args ...any) error {
	return &internalError{fmt.Errorf(format, args...)}
}

// interruptible is work that knows nothing of ctx: at an interrupt it is left behind, in a process about to end.
func interruptible[T any](ctx context.Context, work func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = internalf("%v", p)
			}
			done <- o
		}()
		o.value, o.err = work()
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, context.Canceled
	}
}
