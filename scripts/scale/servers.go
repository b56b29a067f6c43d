//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"dsmoe/convert/remote/remotetest"
)

// servers are a hub with the models, and a store with an empty bucket, out.
type servers struct {
	hub, store  *remotetest.Hub
	chunks      *chunks
	environment []string         // NAME=VALUE of what finds them
	bytes       map[string]int64 // of the tensors of each model
}

// serve makes the models and starts the servers.
func serve(work string) (*servers, error) {
	c, err := newChunks(work)
	if err != nil {
		return nil, err
	}
	s := &servers{chunks: c, bytes: map[string]int64{}}
	files := map[string]remotetest.Blob{}
	for _, m := range models {
		if s.bytes[m.name], err = m.generate(files); err != nil {
			return nil, err
		}
	}
	s.hub = remotetest.NewHub(&objects{chunks: c, files: files})
	store, settings := remotetest.NewStore(&objects{chunks: c, files: map[string]remotetest.Blob{}, dirs: map[string]bool{"out": true}})
	s.store = store
	settings["HF_ENDPOINT"], settings["HF_TOKEN"], settings["HF_HUB_OFFLINE"] = s.hub.API.URL, "", ""
	settings["XDG_CACHE_HOME"] = filepath.Join(work, "cache")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s.environment = append(s.environment, name+"="+settings[name])
	}
	return s, nil
}

func (s *servers) close() {
	s.hub.Close()
	s.store.Close()
}

// forget begins to count anew.
func (s *servers) forget() {
	s.hub.Forget()
	s.store.Forget()
}

// report prints what the store keeps.
func (s *servers) report() {
	if s.chunks.used > 0 {
		fmt.Printf("the store keeps %s in %d distinct chunks\n", gigabytes(s.chunks.used), len(s.chunks.places))
	}
}

func gigabytes(n int64) string { return fmt.Sprintf("%.2f GB", float64(n)/1e9) }
