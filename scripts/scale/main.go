package main

import (
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"

	"dsmoe/convert/remote/remotetest"
)

func main() {
	files := map[string]remotetest.Blob{}
	for _, m := range models {
		n, err := m.generate(files)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, m.name, n)
	}
	c, err := newChunks(os.TempDir())
	if err != nil {
		panic(err)
	}
	hub := remotetest.NewHub(&objects{chunks: c, files: files})
	store, settings := remotetest.NewStore(&objects{chunks: c, files: map[string]remotetest.Blob{}, dirs: map[string]bool{"out": true}})
	fmt.Println("export HF_ENDPOINT=" + hub.API.URL)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Println("export " + name + "=" + settings[name])
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	<-stop
	for _, h := range []*remotetest.Hub{hub, store} {
		requests, cut, sent := h.Traffic()
		fmt.Printf("%d requests, %d responses closed before their end, %d bytes sent\n", requests, cut, sent)
	}
	fmt.Printf("%d bytes in %d chunks\n", c.used, len(c.places))
}
