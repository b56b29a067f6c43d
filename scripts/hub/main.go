// Command hub serves the directories DIR/ORG/NAME as the Hugging Face hub does: the one of the tests, for
// scripts/hub_check.py and for measurements. It prints what to set HF_ENDPOINT to and, when it is interrupted, what it sent.
package main

import (
	"fmt"
	"os"
	"os/signal"

	"dsmoe/convert/remote/remotetest"
)

func main() {
	h := remotetest.NewHub(os.DirFS(os.Args[1]))
	defer h.Close()
	fmt.Println(h.API.URL)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	<-stop
	requests, cut, sent := h.Traffic()
	fmt.Printf("%d requests, %d responses closed before their end, %d bytes sent\n", requests, cut, sent)
}
