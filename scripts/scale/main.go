//go:build linux

// Scale serves models of 160 GB to 1 TB whose weights are made as they are read, as a hub, and a store that keeps equal
// chunks of what is written once, and measures what dsmoe does with them. It fails where a command needs more memory,
// requests or bytes than it may.
//
//	go run ./scripts/scale DSMOE          headers, dry runs, values of all of DeepSeek-V3, one layer
//	go run ./scripts/scale DSMOE whole    all of DeepSeek-V3 to Q8_0 and back, and a layer of it in 16 parts
//	go run ./scripts/scale serve          prints the settings of both servers and serves until it is interrupted
//	go run ./scripts/scale pack CHECKPOINT DIR TOKENS DTYPE    records a pack of dsmoe's own forward pass
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"dsmoe/model/tensor"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "pack":
		tokens, err := strconv.Atoi(args[3])
		d, unknown := tensor.ParseDType(args[4])
		if err := errors.Join(err, unknown); err != nil {
			return err
		}
		took, err := record(args[1], args[2], -1, tokens, d)
		fmt.Printf("forward pass: %.1f s of a processor\n", took.Seconds())
		return err
	case len(args) == 0 || len(args) > 2:
		return errors.New("usage: scale DSMOE [whole]")
	}
	work, err := os.MkdirTemp("", "dsmoe-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	s, err := serve(work)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if args[0] == "serve" {
		for _, line := range s.environment {
			fmt.Println("export " + line)
		}
		<-ctx.Done()
		return nil
	}
	m := &measurement{ctx: ctx, dsmoe: args[0], work: work, servers: s}
	if len(args) == 2 {
		m.whole()
	} else {
		m.headers()
		m.layer()
		m.values()
	}
	s.report()
	return errors.Join(m.failed...)
}
