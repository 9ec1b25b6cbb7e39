package main

// #include "exports.h"
import "C"

import (
	"encoding/json"
	"fmt"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/jobs"
	"github.com/penstock-gpu/penstock/um/live"
)

// version is set when the library is built: -ldflags "-X main.version=...".
var version = "dev"

// listen has this process answer `penstock top`; nil where it cannot, which is no matter to the job.
func listen(e *live.Live, log *zap.Logger) *jobs.Listener {
	l, err := jobs.Listen(jobs.Folders(), func() jobs.Answer { return answer(e) })
	if err != nil {
		log.Debug("`penstock top` cannot ask this process", zap.Error(err))
		return nil
	}
	C.exports_listener(C.int(l.FD()))
	return l
}

// answer is what the job says of itself. A panic here is not to end the job.
func answer(e *live.Live) (a jobs.Answer) {
	defer cuda.LeaveThread()
	defer func() {
		if p := recover(); p != nil {
			a.Stats = nil
			setError(fmt.Errorf("internal error in an answer to penstock top: %v", p))
		}
	}()
	a.Version = version
	if text, err := json.Marshal(e.Stats()); err == nil {
		a.Stats = text
	}
	return a
}
