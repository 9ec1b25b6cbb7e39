// Package testlogs gives tests the launch logs of real training runs that lie
// beside the repository on development machines. They are too large to be part of
// it, and nothing but tests may use them. A test that asks for one is skipped,
// with the reason, where they are missing.
// From a log it also makes up the recording that Penstock would have made of the job.
package testlogs
