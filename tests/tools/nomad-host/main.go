// nomad-host starts a plugin with the library that Nomad is built with, and asks it what standard input says: one
// command a line, each answered by one line, "ok ANSWER" or "error WHY". Messages are bytes in hexadecimal digits.
//
//	nomad-host PLUGIN [ARGUMENT...]
//
//	ping                   the health of the plugin
//	call METHOD MESSAGE    one answer
//	read METHOD MESSAGE    opens a stream, and answers with its first message
//	next                   the next message of that stream
//	end                    ends the plugin as Nomad does; whether it went by itself
//
// What the plugin logs goes to standard error, as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// raw passes messages on as they are.
type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = append([]byte{}, data...)
	return nil
}

func (raw) Name() string { return "proto" }

// connection is a plugin whose client is the connection itself.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this is a host")
}

func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (interface{}, error) {
	return conn, nil
}

type host struct {
	client   *plugin.Client
	protocol plugin.ClientProtocol
	conn     *grpc.ClientConn
	stream   grpc.ClientStream
}

func start(path string, args []string) (*host, error) {
	client := plugin.NewClient(&plugin.ClientConfig{
		// plugins/base/plugin.go of Nomad.
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins:          map[string]plugin.Plugin{"device": connection{}},
		Cmd:              exec.Command(path, args...),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger: hclog.New(&hclog.LoggerOptions{
			Name: "host", Level: hclog.Trace, Output: os.Stderr, JSONFormat: true,
		}),
	})
	protocol, err := client.Client()
	if err != nil {
		client.Kill()
		return nil, err
	}
	device, err := protocol.Dispense("device")
	if err != nil {
		client.Kill()
		return nil, err
	}
	return &host{client: client, protocol: protocol, conn: device.(*grpc.ClientConn)}, nil
}

func (h *host) do(words []string) (string, error) {
	switch {
	case len(words) == 1 && words[0] == "ping":
		return "", h.protocol.Ping()
	case len(words) >= 2 && words[0] == "call":
		request, err := message(words)
		if err != nil {
			return "", err
		}
		var answer []byte
		err = h.conn.Invoke(context.Background(), words[1], &request, &answer, grpc.ForceCodec(raw{}))
		return hex.EncodeToString(answer), err
	case len(words) >= 2 && words[0] == "read":
		return h.read(words)
	case len(words) == 1 && words[0] == "next" && h.stream != nil:
		var answer []byte
		err := h.stream.RecvMsg(&answer)
		return hex.EncodeToString(answer), err
	case len(words) == 1 && words[0] == "end":
		begin := time.Now()
		h.client.Kill()
		if !h.client.Exited() {
			return "", errors.New("it is there yet")
		}
		// The library kills a plugin that has not gone by itself after two seconds.
		if time.Since(begin) >= 2*time.Second {
			return "", errors.New("it had to be killed")
		}
		return "", nil
	}
	return "", fmt.Errorf("unknown command %q", words)
}

func (h *host) read(words []string) (string, error) {
	request, err := message(words)
	if err != nil {
		return "", err
	}
	desc := &grpc.StreamDesc{ServerStreams: true}
	h.stream, err = h.conn.NewStream(context.Background(), desc, words[1], grpc.ForceCodec(raw{}))
	if err != nil {
		return "", err
	}
	if err := h.stream.SendMsg(&request); err != nil {
		return "", err
	}
	if err := h.stream.CloseSend(); err != nil {
		return "", err
	}
	return h.do([]string{"next"})
}

func message(words []string) ([]byte, error) {
	if len(words) < 3 {
		return []byte{}, nil
	}
	return hex.DecodeString(words[2])
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "nomad-host: name the plugin")
		os.Exit(2)
	}
	h, err := start(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Println("error", oneLine(err))
		return
	}
	fmt.Println("ok")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		answer, err := h.do(strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error", oneLine(err))
		} else {
			fmt.Println("ok", answer)
		}
	}
	h.client.Kill()
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
