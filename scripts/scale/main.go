//go:build linux && (amd64 || arm64)

// Scale serves models of 160 GB to 1 TB whose weights are made as they are read, as a hub, and a store that keeps equal
// chunks of what is written once, and measures what dsmoe does with them. It fails where a command needs more memory,
// requests or bytes than it may.
//
//	go run ./scripts/scale DSMOE [STEP…]  the steps: headers, store, layer, verify, values (all of these by default), parts,
//	                             whole, bf16
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
	case len(args) == 0:
		return errors.New("usage: scale DSMOE [STEP…]")
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
	steps := map[string]func(){"headers": m.headers, "store": m.store, "layer": m.layer, "verify": m.verify, "values": m.values,
		"parts": m.parts, "whole": m.whole, "bf16": m.bf16}
	chosen := args[1:]
	if len(chosen) == 0 {
		chosen = []string{"headers", "store", "layer", "verify", "values"}
	}
	for _, name := range chosen {
		if steps[name] == nil {
			return fmt.Errorf("no step %q: the steps are headers, store, layer, verify, values, parts, whole and bf16", name)
		}
		steps[name]()
	}
	s.report()
	return errors.Join(m.failed...)
}
