package main

import "fmt"

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
