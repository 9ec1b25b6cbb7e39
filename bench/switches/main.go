// Command switches simulates jobs that run several programs by turns (package schedule) and prints a JSON array: what each
// iteration takes, and which program it runs. Every number is simulated.
//
//	go run ./bench/switches [-ratios 1.5,2] LOG [SCHEDULE...]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/schedule"
	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/trace"
)

// row is one schedule on one engine.
type row struct {
	Schedule string   `json:"schedule"`
	Ratio    float64  `json:"ratio"`
	Programs []string `json:"programs"`
	replay.Result
}

func main() {
	ratios := flag.String("ratios", "1.5,2", "how many times the budget the peak is")
	engines := flag.String("engines", "managed,explicit", "engines")
	flag.Parse()
	if err := run(flag.Args(), strings.Split(*ratios, ","), strings.Split(*engines, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args, ratios, engines []string) error {
	if len(args) == 0 {
		return fmt.Errorf("name a launch log of a job that trains, and schedules of %v or none for all", schedule.Names())
	}
	log, err := trace.Load(args[0])
	if err != nil {
		return err
	}
	names := args[1:]
	if len(names) == 0 {
		names = schedule.Names()
	}
	profile, err := sim.ProfileByName("h200")
	if err != nil {
		return err
	}
	var rows []row
	for _, name := range names {
		t, programs, err := schedule.New(name, log)
		if err != nil {
			return err
		}
		for _, text := range ratios {
			ratio, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return fmt.Errorf("%q is no ratio: give numbers such as 1.5,2", text)
			}
			for _, engine := range engines {
				r, err := replay.Run(context.Background(), t, replay.Options{Policy: replay.PolicyPenstock, Engine: engine, Ratio: ratio, Profile: profile, Each: true})
				if err != nil {
					return err
				}
				rows = append(rows, row{name, ratio, programs, r})
			}
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(rows)
}
