// Submits a job, prints its progress, and writes its weights, by stubs that protoc made from proto/:
//
//	train HOST:PORT|unix:PATH JOB.yaml MODEL.yaml OUT.safetensors [KEY=VALUE...]
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	pb "fsdpd/v1"
)

func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return string(data)
}

// watch prints a job's progress, and returns its last state.
func watch(client pb.ControlClient, id string) *pb.StateChange {
	stream, err := client.WatchJob(context.Background(), &pb.WatchJobRequest{Id: id})
	var last *pb.StateChange
	for err == nil {
		var answer *pb.WatchJobResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		switch event := answer.Event.Event.(type) {
		case *pb.JobEvent_State:
			last = event.State
			fmt.Println(last.State, last.Reason.GetMessage())
		case *pb.JobEvent_Metrics:
			fmt.Printf("step %d loss %.4f\n", event.Metrics.Step, event.Metrics.Loss)
		case *pb.JobEvent_Epoch:
			fmt.Printf("epoch %d accuracy %.2f %%\n", event.Epoch.Epoch, 100*event.Epoch.GetAccuracy())
		}
	}
	if err != io.EOF {
		log.Fatal(err)
	}
	return last
}

func pull(client pb.ControlClient, id, path string) {
	file, err := os.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	stream, err := client.PullStateDict(context.Background(), &pb.PullStateDictRequest{Id: id})
	for err == nil {
		var chunk *pb.PullStateDictResponse
		if chunk, err = stream.Recv(); err == nil {
			_, err = file.Write(chunk.Data)
		}
	}
	if err == io.EOF {
		err = file.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: train HOST:PORT|unix:PATH JOB.yaml MODEL.yaml OUT.safetensors [KEY=VALUE...]")
	}
	address, job, model, out := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewControlClient(connection)
	submitted, err := client.SubmitJob(context.Background(), &pb.SubmitJobRequest{JobFile: &pb.JobFile{
		Text: text(job), Name: filepath.Base(job), Overrides: os.Args[5:],
		Files: map[string]string{filepath.Base(model): text(model)},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("submitted", submitted.Job.Id)
	if end := watch(client, submitted.Job.Id); end == nil || end.State != pb.JobState_JOB_STATE_SUCCEEDED {
		log.Fatal("the job did not complete")
	}
	pull(client, submitted.Job.Id, out)
}
