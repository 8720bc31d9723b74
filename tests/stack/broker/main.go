// SPDX-License-Identifier: Apache-2.0

// A broker for tests: Kafka's real wire protocol, records in memory. broker PORT TOPIC PARTITIONS; ends on SIGTERM.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	if len(os.Args) != 4 {
		fail("usage: broker PORT TOPIC PARTITIONS")
	}
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fail(err)
	}
	partitions, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fail(err)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(port),
		kfake.SeedTopics(int32(partitions), os.Args[2]),
		kfake.GroupMinSessionTimeout(time.Second),
	)
	if err != nil {
		fail(err)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, "broker:", reason)
	os.Exit(1)
}
